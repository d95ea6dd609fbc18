// Sampling on the CPU: a few passes over the logits of a row, no full sort, no allocation after the
// first call of a thread.
//
// Rows are sampled in parallel, one thread each; their maxima and log-sum-exps come from
// sample/stats.h, where all threads share a row. Thread rule: enqueue only.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/sample/stats.h"
#include "ops/cpu/scalar_math.h"
#include "ops/philox.h"
#include "ops/sample_call.h"

namespace sluice::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// g = -ln(-ln(u)) of the largest u that 32 bits give: 33 ln(2), rounded up.
constexpr double kLargestGumbel = 22.8740;

// A token that may be chosen. `scaled` is (logit - largest logit) / temperature, so at most 0.
struct Candidate {
  float scaled;
  float weight;  // e^scaled
  int32_t id;
};

// The order in which filters keep tokens: larger first, then lower id.
bool before(const Candidate& a, const Candidate& b) {
  return a.scaled != b.scaled ? a.scaled > b.scaled : a.id < b.id;
}

// Vectors of one thread that keep their capacity from row to row.
struct Scratch {
  std::vector<float> allowed;  // adjusted logits, -inf for ids that may not be chosen
  std::vector<Candidate> candidates;
  std::vector<int32_t> ids;
};

// Vectors, hence not the raw bytes of ops/cpu/thread_scratch.h.
Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

// Fills `out` with the tokens that may be chosen and pass temperature and min-p.
void collect_candidates(const float* logits, int32_t vocab, float largest, const SampleRow& params,
                        std::vector<Candidate>& out) {
  // A border in logits: most tokens of a large vocabulary leave here without an exponential.
  const float lowest = params.min_p > 0.0f ? std::log(params.min_p) : -kInfinity;
  const float temperature = params.temperature;
  out.clear();
  for (int32_t id = 0; id < vocab; ++id) {
    const float scaled = (logits[id] - largest) / temperature;
    if (scaled >= lowest && logits[id] > -kInfinity) out.push_back({scaled, 0.0f, id});
  }
}

// Keeps the first k in the order of `before`; 0 or less keeps all.
void keep_top_k(int32_t top_k, std::vector<Candidate>& candidates) {
  const auto k = static_cast<size_t>(std::max(top_k, 0));
  if (k == 0 || k >= candidates.size()) return;
  std::nth_element(candidates.begin(), candidates.begin() + static_cast<int64_t>(k) - 1,
                   candidates.end(), before);
  candidates.resize(k);
}

// Keeps the shortest prefix, in the order of `before`, whose weights reach top_p of the total.
//
// A selection by mass: partitions around the middle and continues in the half that holds the
// border, so the expected cost is linear; a sort of a large vocabulary would dominate the op.
void keep_top_p(float top_p, std::vector<Candidate>& candidates) {
  if (top_p >= 1.0f) return;
  double total = 0.0;
  for (Candidate& candidate : candidates) {
    candidate.weight = fast_exp(candidate.scaled);
    total += static_cast<double>(candidate.weight);
  }
  double missing = total * static_cast<double>(top_p);
  auto begin = candidates.begin();
  auto end = candidates.end();  // the border lies in [begin, end)
  // Invariant: everything before `begin` is kept, everything from `end` on is not, and `missing` is
  // the mass still needed from [begin, end).
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    double mass = 0.0;
    for (auto it = begin; it != middle; ++it) mass += static_cast<double>(it->weight);
    if (mass >= missing) {
      end = middle;
    } else {
      missing -= mass;
      begin = middle;
    }
  }
  // The last candidate of the range reaches the border and is kept.
  candidates.erase(end, candidates.end());
}

// Finds the argmax over candidates of scaled + Gumbel noise, -ln(-ln(u)).
//
// Most candidates are rejected without a logarithm: the noise is at most 22.9, and since -ln(u) is
// at least 1 - u, a candidate can only win where 1 - u < e^(scaled - best). Neither test changes
// the result. Four neighbouring ids share the words of one call of the generator.
class GumbelMax {
 public:
  GumbelMax(int64_t seed, int64_t position) : seed_(seed), position_(position) {}

  void offer(const Candidate& candidate) {
    if (candidate.scaled + kLargestGumbel < best_) return;
    const auto id = static_cast<uint32_t>(candidate.id);
    if (id / 4 != group_) {
      group_ = id / 4;
      words_ = sample_words(seed_, position_, group_);
    }
    const double u = uniform_open(words_[id % 4]);
    constexpr double kSlack = 1.0001;  // more than fast_exp and the subtraction can be off
    const auto lead = static_cast<float>(candidate.scaled - best_);
    if (1.0 - u > kSlack * static_cast<double>(fast_exp(lead))) return;
    const double value = candidate.scaled - std::log(-std::log(u));
    if (value > best_ || (value == best_ && candidate.id < best_id_)) {
      best_ = value;
      best_id_ = candidate.id;
    }
  }

  int32_t best_id() const { return best_id_; }

 private:
  const int64_t seed_;
  const int64_t position_;
  uint32_t group_ = 0xffffffff;  // of words_; the initial value is no group
  PhiloxWords words_{};
  double best_ = -std::numeric_limits<double>::infinity();
  int32_t best_id_ = -1;
};

// The id that wins. The order of offers changes only how many candidates the tests above reject.
int32_t draw(const std::vector<Candidate>& candidates, int64_t seed, int64_t position) {
  GumbelMax winner(seed, position);
  for (const Candidate& candidate : candidates) {
    if (candidate.scaled == 0.0f) winner.offer(candidate);  // the largest sets a good bound at once
  }
  for (const Candidate& candidate : candidates) {
    if (candidate.scaled != 0.0f) winner.offer(candidate);
  }
  return winner.best_id();
}

// A logit after its entry, as ops/sample.h says.
float adjusted_logit(float logit, float bias, float repetition, float penalty) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float biased = logit + bias;
  if (biased == -kInfinity) return biased;
  const float scaled = biased > 0.0f ? biased / repetition : biased * repetition;
  return std::clamp(scaled - penalty, -kLargest, kLargest);
}

void apply_entries(const SampleCall& call, int64_t row, float* logits) {
  const AdjustmentsCall& entries = call.adjustments;
  if (entries.begin == nullptr) return;
  for (int32_t i = entries.begin[row]; i < entries.begin[row + 1]; ++i) {
    SLUICE_CHECK(entries.ids[i] >= 0 && entries.ids[i] < call.vocab,
                 "sample: an entry of id {} of a vocabulary of {}", entries.ids[i], call.vocab);
    float& logit = logits[entries.ids[i]];
    logit = adjusted_logit(logit, entries.bias[i], entries.repetition[i], entries.penalty[i]);
  }
}

bool has_mask(const SampleCall& call, int64_t row) {
  return call.masks != nullptr && call.rows[row].mask >= 0;
}

// Sets the logits of tokens that the row's mask lacks to -inf.
void apply_mask(const SampleCall& call, int64_t row, float* logits) {
  if (!has_mask(call, row)) return;
  const int32_t* words = call.masks + int64_t{call.rows[row].mask} * call.num_words;
  for (int32_t id = 0; id < call.vocab; ++id) {
    if ((static_cast<uint32_t>(words[id / 32]) >> (id % 32) & 1) == 0) logits[id] = -kInfinity;
  }
}

void apply_suppression(const SampleCall& call, int64_t row, float* logits) {
  const int32_t* suppressed = call.suppressed + row * call.num_suppressed;
  for (int32_t i = 0; i < call.num_suppressed; ++i) {
    if (suppressed[i] < 0) continue;
    SLUICE_CHECK(suppressed[i] < call.vocab, "sample: suppressed id {} of a vocabulary of {}",
                 suppressed[i], call.vocab);
    logits[suppressed[i]] = -kInfinity;
  }
}

// Whether a choice sees other logits than those of the row.
bool changes_logits(const SampleCall& call, int64_t row) {
  const AdjustmentsCall& adjustments = call.adjustments;
  if (adjustments.begin != nullptr && adjustments.begin[row] < adjustments.begin[row + 1]) {
    return true;
  }
  if (has_mask(call, row)) return true;
  const int32_t* suppressed = call.suppressed + row * call.num_suppressed;
  return std::any_of(suppressed, suppressed + call.num_suppressed,
                     [](int32_t id) { return id >= 0; });
}

// The logits to choose from, adjusted, with -inf for ids that may not be chosen; the logits
// themselves where nothing changes them.
const float* allowed_logits(const SampleCall& call, int64_t row, Scratch& scratch) {
  const float* logits = call.logits + row * call.vocab;
  if (!changes_logits(call, row)) return logits;
  scratch.allowed.assign(logits, logits + call.vocab);
  apply_entries(call, row, scratch.allowed.data());
  apply_mask(call, row, scratch.allowed.data());
  apply_suppression(call, row, scratch.allowed.data());
  return scratch.allowed.data();
}

// The token of one row. `top_id` is the argmax of the raw logits; it is used unless the choice sees
// others. Throws kDevice if no token is left.
int32_t choose_token(const SampleCall& call, int64_t row, int32_t top_id, Scratch& scratch) {
  if (call.given != nullptr && call.given[row] >= 0) {
    SLUICE_CHECK(call.given[row] < call.vocab, "sample: given id {} of a vocabulary of {}",
                 call.given[row], call.vocab);
    return call.given[row];
  }
  const float* logits = allowed_logits(call, row, scratch);
  const bool unchanged = logits == call.logits + row * call.vocab;
  const int32_t best_id = unchanged ? top_id : argmax(logits, call.vocab);
  const float largest = logits[best_id];
  if (largest == -kInfinity) {
    fail(ErrorCode::kDevice, "row {} has no token left to choose: all {} are suppressed or -inf",
         row, call.vocab);
  }
  const SampleRow& params = call.rows[row];
  if (params.temperature == 0.0f) return best_id;
  collect_candidates(logits, call.vocab, largest, params, scratch.candidates);
  keep_top_k(params.top_k, scratch.candidates);
  keep_top_p(params.top_p, scratch.candidates);
  return draw(scratch.candidates, params.seed, params.position);
}

// The num_top largest raw logits as log-probabilities, in descending order, lower id first.
void write_top(const SampleCall& call, int64_t row, double log_total, Scratch& scratch) {
  const float* logits = call.logits + row * call.vocab;
  std::vector<int32_t>& ids = scratch.ids;
  ids.resize(static_cast<size_t>(call.vocab));
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + call.num_top, ids.end(),
                    [logits](int32_t a, int32_t b) {
                      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
                    });
  for (int32_t i = 0; i < call.num_top; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    call.top_token_ids[row * call.num_top + i] = id;
    call.top_logprobs[row * call.num_top + i] = static_cast<float>(logits[id] - log_total);
  }
}

// Refuses NaN, +inf and rows without a finite logit before it chooses; `log_sum` is NaN exactly for
// a NaN, `largest` is infinite for the others.
void sample_row(const SampleCall& call, int64_t row, const RowStats& stats) {
  Scratch& scratch = thread_scratch();
  const float* logits = call.logits + row * call.vocab;
  if (!std::isfinite(stats.largest) || !std::isfinite(stats.log_sum)) {
    fail(ErrorCode::kDevice, kLogitsNotFinite, row);
  }
  const double log_total = static_cast<double>(stats.largest) + stats.log_sum;
  const int32_t id = choose_token(call, row, stats.top_id, scratch);
  call.token_ids[row] = id;
  call.logprobs[row] = static_cast<float>(logits[id] - log_total);
  if (call.top_token_ids != nullptr) write_top(call, row, log_total, scratch);
}

}  // namespace

void CpuOps::sample(Stream& stream, const SampleArgs& args) const {
  const SampleCall call = make_sample_call(args);
  as_cpu(stream).submit("sample", [call, &kernels = row_kernels(isa_)](ThreadTeam& team) {
    const std::vector<RowStats>& stats =
        row_stats(team, call.logits, call.num_rows, call.vocab, kernels);
    team.parallel_for(call.num_rows,
                      [&](int64_t row) { sample_row(call, row, stats[static_cast<size_t>(row)]); });
  });
}

}  // namespace sluice::cpu
