// Means of measured times, and the maximum of the model.
#include "engine/speculation/draft_length.h"

#include <algorithm>
#include <cmath>

namespace sluice {

void DraftLength::Mean::add(int64_t duration_ns) {
  constexpr int64_t kEarly = 4;
  const auto time = static_cast<double>(std::max<int64_t>(duration_ns, 1));
  if (++num_times == 1) return;
  if (num_times <= kEarly) {
    ns = ns == 0 ? time : std::min(ns, time);
  } else {
    ns += 0.2 * (std::min(time, 3 * ns) - ns);
  }
}

size_t DraftLength::bucket_of(int64_t num_rows) {
  if (num_rows <= static_cast<int64_t>(kExactRows)) return static_cast<size_t>(num_rows);
  const double doublings =
      std::log2(static_cast<double>(num_rows) / static_cast<double>(kExactRows));
  return kExactRows + 1 + std::min<size_t>(static_cast<size_t>(doublings * 4), 62);
}

void DraftLength::verified(int64_t num_rows, int64_t duration_ns) {
  Mean& mean = passes_[bucket_of(num_rows)];
  mean.add(duration_ns);
  mean.newest = ++num_passes_;
}

// The rows in the middle of a bucket.
double DraftLength::rows_of(size_t bucket) {
  if (bucket <= kExactRows) return static_cast<double>(bucket);
  const double doublings = (static_cast<double>(bucket - kExactRows) - 0.5) / 4;
  return static_cast<double>(kExactRows) * std::exp2(doublings);
}

// Between two measurements it is on their line, past the last one as that. 0: nothing is measured.
double DraftLength::pass_ns(int64_t num_rows) const {
  const size_t bucket = bucket_of(num_rows);
  size_t above = bucket;
  while (above < passes_.size() && passes_[above].ns == 0) ++above;
  size_t below = bucket + 1;  // one more, since 0 rows are none
  while (below > 0 && passes_[below - 1].ns == 0) --below;
  if (below == 0) return above < passes_.size() ? passes_[above].ns : 0;
  const size_t low = below - 1;
  const double low_ns = passes_[low].ns;
  if (above == passes_.size() || above == low) return low_ns;
  const double share = (rows_of(bucket) - rows_of(low)) / (rows_of(above) - rows_of(low));
  return low_ns + share * std::max(0.0, passes_[above].ns - low_ns);
}

int64_t DraftLength::best(const OfKind& of_kind, double acceptance, double draft_ns,
                          int64_t num_seqs, int64_t num_drafting) const {
  const auto m = static_cast<double>(num_drafting);
  const double others = static_cast<double>(num_seqs) - m;
  const int64_t longest = std::min(max_tokens_, std::max(kFirstTry, 2 * of_kind.longest));
  const double plain_ns = pass_ns(num_seqs);
  double best_rate = kLeastGain * static_cast<double>(num_seqs) / plain_ns;
  double tokens = 1, share = 1;
  int64_t best = 0;
  for (int64_t k = 1; k <= longest; ++k) {
    share *= acceptance;
    tokens += share;
    const double verify_ns = std::max(plain_ns, pass_ns(num_seqs + num_drafting * k));
    const double rate = (m * tokens + others) / (verify_ns + static_cast<double>(k) * draft_ns);
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = k;
  }
  return best;
}

int64_t DraftLength::choose(DraftKind kind, const AcceptanceRate& rate, int64_t num_seqs,
                            int64_t num_drafting) {
  OfKind& of_kind = of(kind);
  // Steps without drafts say what they take, now and then.
  const Mean& plain = passes_[bucket_of(num_seqs)];
  if (plain.ns == 0 || num_passes_ - plain.newest > kOldPasses) return 0;
  const double draft_ns = kind == DraftKind::kSparse ? draft_.ns : 0;
  const double acceptance =
      std::clamp(rate.with_prior(of_kind.all.with_prior(of_kind.prior)), 0.0, 0.999);
  int64_t chosen = best(of_kind, acceptance, draft_ns, num_seqs, num_drafting);
  const double plain_ns = pass_ns(num_seqs);
  of_kind.credit_ns =
      chosen > 0 ? 0
                 : of_kind.credit_ns + kProbeShare * plain_ns / static_cast<double>(num_drafting);
  const int64_t probe = std::min(kFirstTry, max_tokens_);
  const double probe_ns =
      pass_ns(num_seqs + num_drafting * probe) - plain_ns + static_cast<double>(probe) * draft_ns;
  if (chosen == 0 && of_kind.credit_ns > std::max(probe_ns, kProbeShare * 50 * plain_ns)) {
    of_kind.credit_ns = 0;
    chosen = probe;
  }
  of_kind.longest = std::max(of_kind.longest, chosen);
  return chosen;
}

}  // namespace sluice
