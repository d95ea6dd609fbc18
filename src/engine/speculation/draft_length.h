// DraftLength: how many tokens to draft, from measured times and acceptance.
//
// Used by Speculator where num_speculative_tokens is not given. It maximises tokens per second by
// the model of docs/speculation.md: for n sequences of which m draft k tokens each, accepted with
// probability a,
//
//   m (1 - a^(k+1)) / (1 - a) + n - m   tokens in   T(n + m k) + k t
//
// where T is the time of a decode or verify pass by its rows and t that of a draft pass. Passes
// longer than all that were measured are assumed to take as long as the longest of these, so they
// are tried and then known; passes between two measurements take what lies between. A pass with
// drafts never counts as faster than one without, whatever a busy machine has measured. Where no k
// pays, nothing is drafted, but for one short draft whenever its cost is 1 % of the time that
// has passed since the last one. Where drafts pay, one step in 128 has none, so that its time stays
// known. Times decide lengths alone, never tokens. Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/speculation/draft_record.h"

namespace sluice {

class DraftLength {
 public:
  explicit DraftLength(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // A decode or verify pass of this many rows took this long; a draft pass did.
  void verified(int64_t num_rows, int64_t duration_ns);
  void drafted(int64_t duration_ns) { draft_.add(duration_ns); }
  // A draft of this kind was judged.
  void judged(DraftKind kind, int64_t num_drafted, int64_t num_accepted) {
    of(kind).all.add(num_drafted, num_accepted);
  }

  // Tokens of the next draft of a sequence with this record, in a step of `num_seqs` sequences of
  // which `num_drafting` may draft; at most `max_tokens`.
  int64_t choose(DraftKind kind, const AcceptanceRate& rate, int64_t num_seqs,
                 int64_t num_drafting);

 private:
  // A running mean that follows changes and bounds what one outlier does. The first time of a shape
  // is left out, since it loads kernels; the next three count by their least, since one of them may
  // capture a graph.
  struct Mean {
    double ns = 0;  // 0: nothing measured
    int64_t num_times = 0;
    int64_t newest = 0;  // number of the pass
    void add(int64_t duration_ns);
  };
  struct OfKind {
    AcceptanceRate all;    // of all sequences
    double prior = 0.5;    // before anything is known
    int64_t longest = 0;   // draft chosen so far
    double credit_ns = 0;  // for the next probe
  };
  OfKind& of(DraftKind kind) { return kinds_[static_cast<size_t>(kind)]; }

  static size_t bucket_of(int64_t num_rows);
  static double rows_of(size_t bucket);
  double pass_ns(int64_t num_rows) const;
  int64_t best(const OfKind& of_kind, double acceptance, double draft_ns, int64_t num_seqs,
               int64_t num_drafting) const;

  // Exact up to 16 rows, then four buckets for each doubling.
  static constexpr size_t kExactRows = 16;
  static constexpr int64_t kFirstTry = 4;
  static constexpr double kProbeShare = 0.01;
  static constexpr double kLeastGain = 1.01;
  static constexpr int64_t kOldPasses = 128;

  int64_t max_tokens_;
  std::array<Mean, kExactRows + 64> passes_;  // by bucket_of(rows)
  Mean draft_;
  int64_t num_passes_ = 0;
  std::array<OfKind, 2> kinds_{OfKind{}, OfKind{.all = {}, .prior = 0.8}};
};

}  // namespace sluice
