// PartLimit: how far ranks may enqueue a pass that can be cancelled, so that all end it after the
// same part.
//
// A part of a pass holds sums over all ranks: a rank that left a pass before another would leave
// that one waiting. So the first rank allows parts, a few ahead of its own; the others enqueue what
// is allowed. To cancel, it allows no more, and all ranks leave the pass after the newest part that
// was. Parts are counted over all such passes, so a count needs no number of the pass. Cost: one
// store a part; another rank polls while it is kPartsAhead parts ahead of the first.
// Thread rule: as said at each function.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "device/host/rank_group.h"

namespace sluice {

class PartLimit {
 public:
  // REQUIRES: the group outlives this object.
  explicit PartLimit(const RankGroup& group) : group_(group) {}

  // ---- The first rank's thread ----

  // Allows the first parts of a pass. Call it before another rank hears of the pass.
  void begin_pass();
  // The first rank enqueues as many parts as are allowed by now, and no rank enqueues more.
  void end();
  // The first rank has enqueued one more part, and others may go on as far ahead of it. False: it
  // was the last one before an end, and all ranks have left the pass. Errors: kDevice if a rank has
  // failed.
  bool advance();

  // ---- The thread of another rank, which has enqueued `num_parts` of all passes ----

  // Waits until it may enqueue one more part. False: it has to leave the pass now. Errors: kDevice
  // if a rank has failed.
  bool may_go_on(int64_t num_parts);

 private:
  // While the first rank waits for its device, others have work for as long.
  static constexpr int64_t kPartsAhead = 2;
  static constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

  const RankGroup& group_;
  int64_t num_parts_ = 0;             // enqueued by the first rank
  std::atomic<int64_t> allowed_ = 0;  // parts that others may enqueue
  std::atomic<int64_t> end_ = kNoEnd;
  std::atomic<int32_t> num_left_ = 0;  // ranks that have left the pass that ends
};

}  // namespace sluice
