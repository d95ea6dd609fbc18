// Sampling on CUDA: one cluster of blocks a row, a few passes over its logits, no sort, no scratch.
//
// Every filter keeps a prefix of one order (place_of), so a set of kept tokens is one number, the
// border, and nothing has to be sorted:
//   top-k   the border is the k-th place: a radix selection (sample_row.cuh)
//   top-p   a token is kept when the weight before it is less than top_p of all. That needs to be
//           known of one token only: the Gumbel winner of the whole set. If it is kept, it is the
//           winner of the kept set as well; if not, nothing from it on is kept, and the winner of
//           the tokens before it is looked at next. A winner is kept with probability top_p or
//           more, so one pass is the rule; each further pass halves what is left.
//
// Bound: bytes, 4 a token, once from memory; the other passes (2 in all for a greedy row, 3 with
// top-p, 6 or 7 with top-k) read L2. At few rows a pass is bound by its latency instead, about 3
// microseconds with 8 blocks. Tile: a row's groups of 4 ids, which share a call of Philox, dealt to
// the 512 threads of each block of the cluster.
#include <climits>
#include <cmath>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/sample.h"
#include "ops/cuda/sample_row.cuh"
#include "ops/philox.h"

namespace sluice::cuda {
namespace {

// g = -ln(-ln(u)) of the largest u that 32 bits give: 33 ln(2), rounded up.
constexpr double kLargestGumbel = 22.8740;

// Rows of up to so many tokens are the work of a single block.
constexpr int32_t kVocabOfOneBlock = 16384;

struct SampleCall {
  const float* logits;
  const float* temperature;
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seed;
  const int64_t* position;
  const int32_t* suppressed;  // or null
  int32_t* token_ids;
  float* logprobs;
  int32_t* top_token_ids;  // or null
  float* top_logprobs;
  int64_t num_rows;
  int32_t vocab;
  int32_t num_suppressed;
  int32_t num_top;
  bool aligned;
  CudaReport bad_logits;
  CudaReport nothing_left;
};

// What the first pass finds out.
struct Peak {
  float largest;    // of all logits
  float allowed;    // of those that are not suppressed
  int32_t id;       // the lowest with that logit
  int32_t has_nan;  // 0 or 1
};

__device__ inline Peak higher(const Peak& a, const Peak& b) {
  const bool b_wins = b.allowed > a.allowed || (b.allowed == a.allowed && b.id < a.id);
  return {fmaxf(a.largest, b.largest), b_wins ? b.allowed : a.allowed, b_wins ? b.id : a.id,
          a.has_nan | b.has_nan};
}

__device__ __noinline__ Peak find_peak(SampleCluster& cluster) {
  Peak peak = {-INFINITY, -INFINITY, INT_MAX, 0};
  cluster.for_each_group([&](int first_id, const float(&values)[4], uint32_t banned) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      peak.has_nan |= isnan(values[i]) ? 1 : 0;
      peak.largest = fmaxf(peak.largest, values[i]);
      // Ids come in ascending order, so the first of equals is the lowest.
      if ((banned >> i & 1) == 0 && values[i] > peak.allowed) {
        peak.allowed = values[i];
        peak.id = first_id + i;
      }
    }
  });
  return cluster.reduce(peak, [](const Peak& a, const Peak& b) { return higher(a, b); });
}

// The tokens that may be chosen: suppression, temperature and min-p, then the border.
struct Candidates {
  float largest;      // of the allowed logits
  float temperature;  // not 0
  float lowest;       // ln(min_p), or -inf
  uint64_t border;    // places from here on

  // `scaled` is (logit - largest) / temperature, at most 0.
  __device__ bool holds(float logit, int32_t id, bool banned, float& scaled,
                        uint64_t& place) const {
    scaled = __fdiv_rn(logit - largest, temperature);
    if (banned || !(logit > -INFINITY) || !(scaled >= lowest)) return false;
    place = place_of(scaled, id);
    return place >= border;
  }
};

// Finds the argmax over candidates of scaled + Gumbel noise, -ln(-ln(u)), in double as every
// backend does. Most candidates are beaten without a logarithm: the noise is at most 22.9, and
// since -ln(u) is at least 1 - u, a candidate can only win where 1 - u < e^(scaled - best).
struct Winner {
  double value;
  uint64_t place;  // 0: none

  __device__ void offer(float scaled, uint64_t at, uint32_t word) {
    const double u = uniform_open(word);
    constexpr double kSlack = 1.0001;  // more than expf and the subtraction can be off
    if (1.0 - u > kSlack * expf(static_cast<float>(scaled - value))) return;
    offer_value(scaled - log(-log(u)), at);
  }
  __device__ void offer_value(double other, uint64_t at) {
    // Equal values: the lower id, which is the larger lower half of the place.
    if (other > value ||
        (other == value && static_cast<uint32_t>(at) > static_cast<uint32_t>(place))) {
      value = other;
      place = at;
    }
  }
};

// What a pass over the candidates adds up.
struct Tally {
  double raw_sum;  // of e^(logit - largest logit), over all tokens
  double mass;     // of e^scaled, over the candidates
  double before;   // of e^scaled, over the candidates before `pivot`
  uint64_t count;  // of candidates
  Winner winner;   // among the candidates before `pivot`
};

__device__ inline Tally sum_of(const Tally& a, const Tally& b) {
  Tally sum = {a.raw_sum + b.raw_sum, a.mass + b.mass, a.before + b.before, a.count + b.count,
               a.winner};
  sum.winner.offer_value(b.winner.value, b.winner.place);
  return sum;
}

struct TallyPlan {
  float raw_largest;  // for raw_sum
  bool sums_raw;
  bool has_candidates;  // false: a greedy row
  bool draws;           // look for the winner
  uint64_t pivot;       // 0: everything is before it
  int64_t seed;
  int64_t position;
};

__device__ inline void tally_group(const TallyPlan& plan, const Candidates& candidates,
                                   int first_id, const float (&values)[4], uint32_t banned,
                                   Tally& tally) {
  float scaled[4];
  uint64_t places[4];
  uint32_t drawn = 0;  // the ones whose noise is worth knowing
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (plan.sums_raw) tally.raw_sum += expf(values[i] - plan.raw_largest);
    if (!plan.has_candidates) continue;
    if (!candidates.holds(values[i], first_id + i, (banned >> i & 1) != 0, scaled[i], places[i])) {
      continue;
    }
    const double weight = expf(scaled[i]);
    tally.mass += weight;
    ++tally.count;
    if (places[i] <= plan.pivot) continue;
    tally.before += weight;
    if (plan.draws && scaled[i] + kLargestGumbel >= tally.winner.value) drawn |= 1u << i;
  }
  if (drawn == 0) return;
  const PhiloxWords words =
      sample_words(plan.seed, plan.position, static_cast<uint32_t>(first_id) / 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((drawn >> i & 1) != 0) tally.winner.offer(scaled[i], places[i], words[i]);
  }
}

__device__ inline uint32_t word_of_id(const TallyPlan& plan, int32_t id) {
  const PhiloxWords words = sample_words(plan.seed, plan.position, static_cast<uint32_t>(id) / 4);
  const int i = id % 4;  // chosen without an index, which would put the words in memory
  return i == 0 ? words[0] : i == 1 ? words[1] : i == 2 ? words[2] : words[3];
}

__device__ __noinline__ Tally add_up(SampleCluster& cluster, const TallyPlan& plan,
                                     const Candidates& candidates, int32_t peak_id) {
  Tally tally = {};
  tally.winner.value = -INFINITY;
  // The first token of the order sets a good bound at once.
  const uint64_t peak_place = place_of(0.0f, peak_id);
  if (plan.draws && peak_place >= candidates.border && peak_place > plan.pivot) {
    tally.winner.offer(0.0f, peak_place, word_of_id(plan, peak_id));
  }
  cluster.for_each_group([&](int first_id, const float(&values)[4], uint32_t banned) {
    tally_group(plan, candidates, first_id, values, banned, tally);
  });
  return cluster.reduce(tally, [](const Tally& a, const Tally& b) { return sum_of(a, b); });
}

// The token of a row that is not greedy. `tally` is that of all candidates, without a winner when
// top-k is going to leave some of them out.
__device__ int32_t draw(SampleCluster& cluster, const SampleCall& call, int64_t row, TallyPlan plan,
                        Candidates candidates, int32_t peak_id, Tally tally) {
  plan.sums_raw = false;
  if (!plan.draws) {
    const auto top_k = static_cast<uint64_t>(call.top_k[row]);
    if (top_k < tally.count) {
      const auto place = [&](float logit, int32_t id, bool banned) {
        float scaled;
        uint64_t at;
        return candidates.holds(logit, id, banned, scaled, at) ? at : 0;
      };
      candidates.border = cluster.select(static_cast<uint32_t>(top_k), place);
    }
    plan.draws = true;
    tally = add_up(cluster, plan, candidates, peak_id);
  }
  Winner winner = tally.winner;
  const double wanted = tally.mass * static_cast<double>(call.top_p[row]);
  while (call.top_p[row] < 1.0f) {
    plan.pivot = winner.place;
    tally = add_up(cluster, plan, candidates, peak_id);
    if (tally.before < wanted || tally.before == 0.0) break;
    winner = tally.winner;
  }
  return id_at(winner.place);
}

// The `num_top` likeliest tokens of the raw logits, in order.
__device__ void write_top(SampleCluster& cluster, SampleShared& shared, const SampleCall& call,
                          int64_t row, double log_total) {
  const auto place = [&](float logit, int32_t id, bool) {
    return id < call.vocab ? place_of(logit, id) : 0;
  };
  cluster.clear_top();
  const uint64_t border = cluster.select(static_cast<uint32_t>(call.num_top), place);
  cluster.for_each_group([&](int first_id, const float(&values)[4], uint32_t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t at = place(values[i], first_id + i, false);
      if (at >= border) cluster.append_top(at);
    }
  });
  cluster.sync();
  const int thread = static_cast<int>(threadIdx.x);
  if (!cluster.is_first_block() || thread >= call.num_top) return;
  const uint64_t mine = shared.top[thread];  // in any order until now
  int rank = 0;
  for (int i = 0; i < call.num_top; ++i) rank += shared.top[i] > mine ? 1 : 0;
  const int32_t id = id_at(mine);
  call.top_token_ids[row * call.num_top + rank] = id;
  call.top_logprobs[row * call.num_top + rank] =
      static_cast<float>(static_cast<double>(call.logits[row * call.vocab + id]) - log_total);
}

// A row that cannot be sampled is reported; what it leaves is a token that exists.
__device__ void give_up(const SampleCluster& cluster, const SampleCall& call, int64_t row,
                        const CudaReport& report) {
  if (!cluster.is_first_block()) return;
  if (threadIdx.x == 0) {
    fail_row(report, row);
    call.token_ids[row] = 0;
    call.logprobs[row] = 0.0f;
  }
  for (int i = threadIdx.x; i < call.num_top; i += kSampleThreads) {
    call.top_token_ids[row * call.num_top + i] = 0;
    call.top_logprobs[row * call.num_top + i] = 0.0f;
  }
}

__device__ void sample_row(SampleCluster& cluster, SampleShared& shared, const SampleCall& call,
                           int64_t row) {
  const Peak peak = find_peak(cluster);
  if (peak.has_nan != 0 || isinf(peak.largest)) {
    return give_up(cluster, call, row, call.bad_logits);
  }
  if (isinf(peak.allowed)) return give_up(cluster, call, row, call.nothing_left);

  const float temperature = call.temperature[row];
  const float min_p = call.min_p[row];
  const bool is_greedy = temperature == 0.0f;
  const bool limits = call.top_k[row] > 0 && call.top_k[row] < call.vocab;
  const Candidates candidates = {peak.allowed, temperature, min_p > 0.0f ? logf(min_p) : -INFINITY,
                                 0};
  const TallyPlan plan = {.raw_largest = peak.largest,
                          .sums_raw = true,
                          .has_candidates = !is_greedy,
                          .draws = !is_greedy && !limits,
                          .pivot = 0,
                          .seed = call.seed[row],
                          .position = call.position[row]};
  const Tally tally = add_up(cluster, plan, candidates, peak.id);
  const int32_t id =
      is_greedy ? peak.id : draw(cluster, call, row, plan, candidates, peak.id, tally);
  const double log_total = static_cast<double>(peak.largest) + log(tally.raw_sum);
  if (cluster.is_first_block() && threadIdx.x == 0) {
    const double logit = call.logits[row * call.vocab + id];
    call.token_ids[row] = id;
    call.logprobs[row] = static_cast<float>(logit - log_total);
  }
  if (call.num_top > 0) write_top(cluster, shared, call, row, log_total);
}

__global__ void __launch_bounds__(kSampleThreads, 2) sample_rows(SampleCall call) {
  __shared__ SampleShared shared;
  const int64_t row = blockIdx.x / RowBlocks::count();
  const SampleRow view = {.logits = call.logits + row * call.vocab,
                          .vocab = call.vocab,
                          .aligned = call.aligned,
                          .suppressed = call.suppressed + row * call.num_suppressed,
                          .num_suppressed = call.num_suppressed};
  SampleCluster cluster(shared, view);
  sample_row(cluster, shared, call, row);
  cluster.sync();  // no block leaves while another may read its shared memory
}

void launch(cudaStream_t stream, const SampleCall& call, bool has_clusters) {
  const unsigned num_blocks = has_clusters && call.vocab > kVocabOfOneBlock ? kMaxClusterBlocks : 1;
  cudaLaunchAttribute cluster_size = {};
  cluster_size.id = cudaLaunchAttributeClusterDimension;
  cluster_size.val.clusterDim.x = num_blocks;
  cluster_size.val.clusterDim.y = 1;
  cluster_size.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(call.num_rows) * num_blocks);
  config.blockDim = dim3(kSampleThreads);
  config.stream = stream;
  config.attrs = &cluster_size;
  config.numAttrs = num_blocks > 1 ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, sample_rows, call), "cudaLaunchKernelEx");
}

}  // namespace

void sample(CudaStream& stream, const SampleArgs& args) {
  const bool suppresses = args.suppressed.present();
  const bool lists_top = args.top_token_ids.present();
  SampleCall call{
      .logits = args.logits.data<float>(),
      .temperature = args.temperature.data<float>(),
      .top_k = args.top_k.data<int32_t>(),
      .top_p = args.top_p.data<float>(),
      .min_p = args.min_p.data<float>(),
      .seed = args.seed.data<int64_t>(),
      .position = args.position.data<int64_t>(),
      .suppressed = suppresses ? args.suppressed.data<int32_t>() : nullptr,
      .token_ids = args.token_ids.data<int32_t>(),
      .logprobs = args.logprobs.data<float>(),
      .top_token_ids = lists_top ? args.top_token_ids.data<int32_t>() : nullptr,
      .top_logprobs = lists_top ? args.top_logprobs.data<float>() : nullptr,
      .num_rows = args.logits.dim(0),
      .vocab = static_cast<int32_t>(args.logits.dim(1)),
      .num_suppressed = suppresses ? static_cast<int32_t>(args.suppressed.dim(1)) : 0,
      .num_top = lists_top ? static_cast<int32_t>(args.top_token_ids.dim(1)) : 0,
      .aligned = args.logits.dim(1) % 4 == 0 && is_aligned(args.logits.bytes()),
  };
  SLUICE_CHECK(call.num_top <= kMaxTop, "sample: {} log-probabilities a row; at most {} on CUDA",
               call.num_top, kMaxTop);
  if (call.num_rows == 0) return;
  stream.submit("sample", [&](cudaStream_t handle) {
    call.bad_logits =
        stream.report("sample", "row {} of the logits has NaN, +inf or no finite number");
    call.nothing_left =
        stream.report("sample", "row {} has no token left to choose: all are suppressed or -inf");
    launch(handle, call, stream.cuda_device().properties().major >= 9);
  });
}

}  // namespace sluice::cuda
