// DraftRecord: how the drafts of one sequence did, by who made them.
//
// Part of Sequence; the speculator adds to it and chooses the next draft's length by it. Thread
// rule: plain values.
#pragma once

#include <cstdint>

namespace sluice {

// Who made a draft.
enum class DraftKind { kSource, kSparse };

// Draft tokens that were verified, newer ones counting more. A draft is judged up to its first
// token that is not accepted; those after it are no trials.
struct AcceptanceRate {
  double num_trials = 0;
  double num_accepted = 0;

  // The newest draft: `accepted` of its `drafted` tokens.
  void add(int64_t drafted, int64_t accepted) {
    num_trials =
        num_trials * kMemory + static_cast<double>(accepted + (accepted < drafted ? 1 : 0));
    num_accepted = num_accepted * kMemory + static_cast<double>(accepted);
  }

  // The share that is accepted, if `prior` counts as two trials.
  double with_prior(double prior) const { return (num_accepted + 2 * prior) / (num_trials + 2); }

  // What is kept of the weight of earlier drafts: about the newest 32 count. With 16, short drafts
  // have too few trials, and lengths follow chance.
  static constexpr double kMemory = 0.97;
};

struct DraftRecord {
  AcceptanceRate of_source;
  AcceptanceRate of_sparse;
  DraftKind newest = DraftKind::kSource;  // of the current step's draft
  bool may_draft = true;                  // false: its text is given from outside

  AcceptanceRate& of(DraftKind kind) { return kind == DraftKind::kSource ? of_source : of_sparse; }
  const AcceptanceRate& of(DraftKind kind) const {
    return kind == DraftKind::kSource ? of_source : of_sparse;
  }
};

}  // namespace sluice
