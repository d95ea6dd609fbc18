// TeamGain: whether the helpers of a thread team save more time than they cost.
//
// Used by ThreadTeam, on the worker only. If other programs use the cores, a helper is descheduled
// for milliseconds in the middle of a task, and the op waits for it: two threads can then be slower
// than one. Whether that happens can only be measured.
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/clock.h"

namespace sluice {

// Measurements of one call of parallel_for, taken by the worker.
struct TeamRound {
  int64_t own_tasks = 0;    // that the worker ran itself
  int64_t other_tasks = 0;  // that helpers ran
  int64_t own_ns = 0;       // how long its own tasks took
  int64_t lost_ns = 0;      // waking helpers before, plus waiting for them afterwards
};

// Keeps a balance of the time that helpers saved: (mean time of the worker's own tasks) * (tasks of
// helpers) - (time lost to waking and waiting). When the balance falls below kDebtNs, the worker
// runs alone for kFirstAloneNs and then tries again; each failed trial doubles that time. A stalled
// helper costs some milliseconds, so with these constants trials cost less than a tenth of the
// time.
class TeamGain {
 public:
  static constexpr int64_t kDebtNs = -3'000'000;
  static constexpr int64_t kCreditNs = 10'000'000;  // upper limit: a stall soon makes a debt
  static constexpr int64_t kFirstAloneNs = 100'000'000;
  static constexpr int64_t kLongestAloneNs = 1'600'000'000;

  // True while the worker should not wake its helpers. Reads the clock only during such a period.
  bool alone() { return alone_until_ns_ != 0 && still_alone(steady_ns()); }

  // Adds a round that ended at `time_ns` and perhaps begins a period alone.
  void add(const TeamRound& round, int64_t time_ns) {
    if (round.own_tasks == 0) return;  // nothing to compare with
    const int64_t saved_ns = round.own_ns / round.own_tasks * round.other_tasks;
    balance_ns_ = std::min(balance_ns_ + saved_ns - round.lost_ns, kCreditNs);
    if (balance_ns_ >= kCreditNs) next_alone_ns_ = kFirstAloneNs;  // the trial succeeded
    if (balance_ns_ >= kDebtNs) return;
    alone_until_ns_ = time_ns + next_alone_ns_;
    next_alone_ns_ = std::min(2 * next_alone_ns_, kLongestAloneNs);
    balance_ns_ = 0;
  }

  // alone() at a given time.
  bool still_alone(int64_t time_ns) {
    if (time_ns >= alone_until_ns_) alone_until_ns_ = 0;
    return alone_until_ns_ != 0;
  }

 private:
  int64_t balance_ns_ = 0;
  int64_t alone_until_ns_ = 0;  // 0: not alone
  int64_t next_alone_ns_ = kFirstAloneNs;
};

}  // namespace sluice
