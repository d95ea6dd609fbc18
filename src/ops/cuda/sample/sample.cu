// Sampling on CUDA: a cluster of blocks reads the logits of a row once into shared memory and makes
// a few passes over them there; no sort of the vocabulary, no scratch memory.
//
// Every filter keeps a prefix of one order (place_of), so a set of kept tokens is one number:
//   top-k   up to 512: one block lists the first k in order (sample/select.cuh), and the other
//           filters work on the list; above: the k-th place is selected
//   top-p   without a list: a token is kept if the weight before it is less than top_p of the
//   total,
//           and this is tested for one token only, the Gumbel winner of the whole set. If it is
//           kept, it is the winner of the kept set, too; if not, no token from it on is kept, and
//           the winner of the tokens before it is tested next. A winner is kept with probability
//           top_p or more, so mostly one pass suffices; each further pass halves the rest.
//
// Bound: bytes, 4 a token; with few rows the latency of 3 or 4 barriers of the cluster instead.
// Tile: a row on 8 blocks of 512 threads, or on one block up to 16,384 tokens. Share: a third of
// the rate of a device-to-device copy, greedy with many rows (docs/kernels/cuda_ops.md). Thread
// rule: enqueue only.
#include <cfloat>
#include <cmath>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_report.cuh"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/sample/changes.cuh"
#include "ops/cuda/sample/draw.cuh"
#include "ops/cuda/sample/row.cuh"

namespace sluice::cuda {
namespace {

// Rows of up to this many tokens are the work of a single block.
constexpr int32_t kVocabOfOneBlock = 16384;

// Suppression, temperature and min-p, as one number per token: (logit - largest) / temperature, at
// most 0, or -inf for a token that may not be chosen.
struct Scaling {
  float largest;  // of the allowed logits
  float factor;   // 1 / temperature
  float lowest;   // ln(min_p), or -inf

  __device__ void operator()(float (&values)[4], uint32_t banned) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scaled = (values[i] - largest) * factor;
      values[i] = (banned >> i & 1) == 0 && scaled >= lowest ? scaled : -INFINITY;
    }
  }
};

// Scales the row and completes the coarse histogram of its candidates; returns sum_raw.
template <bool kHeld, bool kChanges>
__device__ double scale_and_count(const RowWork<kHeld, kChanges>& work, const Scaling& scaling,
                                  float largest) {
  double raw_sum = 0.0;
  clear_histogram(work.shared, kCoarseBins);
  CoarseCounter counter(work.shared);
  work.tokens.update([&](int first_id, float(&values)[4]) {
    raw_sum += sum_of_exp(values, largest);
    scaling(values, work.tokens.banned_mask(first_id));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (values[i] > -INFINITY) counter.add(values[i]);
    }
  });
  counter.finish();
  return work.reduce(raw_sum, [](double a, double b) { return a + b; });
}

// Calls fn(first_id, scaled values of 4 ids).
template <bool kHeld, bool kChanges, typename Fn>
__device__ void for_each_scaled(const RowWork<kHeld, kChanges>& work, const Scaling& scaling,
                                Fn&& fn) {
  work.tokens.visit([&](int first_id, float(&values)[4]) {
    if (!kHeld) scaling(values, work.tokens.banned_mask(first_id));
    fn(first_id, values);
  });
}

// The sums of a pass over candidates, and its Gumbel winner.
struct Tally {
  double mass;     // of e^scaled
  double raw_sum;  // as sum_raw, or 0
  Winner winner;
};

__device__ inline Tally sum_of(const Tally& a, const Tally& b) {
  return {a.mass + b.mass, a.raw_sum + b.raw_sum, better(a.winner, b.winner)};
}

// Scales the row and adds up all candidates.
template <bool kHeld, bool kChanges>
__device__ Tally scale_and_tally(const RowWork<kHeld, kChanges>& work, const Scaling& scaling,
                                 float largest, int32_t peak_id) {
  GumbelMax best(work.params.seed, work.params.position);
  best.expect(peak_id);
  Tally tally = {};
  work.tokens.update([&](int first_id, float(&values)[4]) {
    tally.raw_sum += sum_of_exp(values, largest);
    scaling(values, work.tokens.banned_mask(first_id));
    tally.mass += sum_of_exp(values, 0.0f);
    best.offer(first_id, values);
  });
  tally.winner = best.winner();
  return work.reduce(tally, [](const Tally& a, const Tally& b) { return sum_of(a, b); });
}

// Adds up the candidates with place > limit of a row that has been scaled.
template <bool kHeld, bool kChanges>
__device__ Tally tally_after(const RowWork<kHeld, kChanges>& work, const Scaling& scaling,
                             uint64_t limit, int32_t peak_id) {
  GumbelMax best(work.params.seed, work.params.position);
  if (place_of(0.0f, peak_id) > limit) best.expect(peak_id);
  Tally tally = {};
  for_each_scaled(work, scaling, [&](int first_id, const float(&values)[4]) {
    float kept[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      kept[i] = place_of(values[i], first_id + i) > limit ? values[i] : -INFINITY;
    }
    tally.mass += sum_of_exp(kept, 0.0f);
    best.offer(first_id, kept);
  });
  tally.winner = best.winner();
  return work.reduce(tally, [](const Tally& a, const Tally& b) { return sum_of(a, b); });
}

// The limit of a large top_k (select_limit), or one below all candidates if there are at most
// top_k.
template <bool kHeld, bool kChanges>
__device__ uint64_t top_k_limit(const RowWork<kHeld, kChanges>& work, const Scaling& scaling) {
  const auto for_each_place = [&](auto fn) {
    for_each_scaled(work, scaling, [&](int first_id, const float(&values)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (values[i] > -INFINITY) fn(place_of(values[i], first_id + i));
      }
    });
  };
  uint64_t count = 0;
  for_each_place([&](uint64_t) { ++count; });
  count = work.reduce(count, [](uint64_t a, uint64_t b) { return a + b; });
  const auto top_k = static_cast<uint32_t>(work.params.top_k);
  return top_k < count ? select_limit(work.shared, top_k, for_each_place) : place_of(-INFINITY, 0);
}

// The token of a row whose candidates are not listed. `tally` is of all that min-p left.
template <bool kHeld, bool kChanges>
__device__ int32_t draw(const RowWork<kHeld, kChanges>& work, const Scaling& scaling, Tally tally,
                        int32_t peak_id) {
  const float top_p = work.params.top_p;
  Winner winner = tally.winner;
  double wanted = tally.mass * static_cast<double>(top_p);
  bool limits_top_k = work.params.top_k > 0;
  // The first round applies top_k, if there is one; each later round tests the winner against
  // top_p.
  while (limits_top_k || top_p < 1.0f) {
    const uint64_t limit = limits_top_k ? top_k_limit(work, scaling) : winner.place;
    tally = tally_after(work, scaling, limit, peak_id);
    // top_p is a share of the mass that top_k left.
    if (limits_top_k) {
      wanted = tally.mass * static_cast<double>(top_p);
      limits_top_k = false;
    } else if (tally.mass < wanted || tally.mass == 0.0) {
      break;  // the tokens before the winner do not reach top_p: it is kept
    }
    winner = tally.winner;
  }
  return id_at(winner.place);
}

// The token of a row with a small top_k, in the first block; the others return 0.
template <bool kHeld, bool kChanges>
__device__ int32_t draw_listed(const RowWork<kHeld, kChanges>& work, const Scaling& scaling) {
  const auto top_k = static_cast<uint32_t>(work.params.top_k);
  const uint32_t count = list_first(work.shared, top_k, [&](auto fn) {
    for_each_scaled(work, scaling, [&](int first_id, const float(&values)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (values[i] > -INFINITY) fn(values[i], place_of(values[i], first_id + i));
      }
    });
  });
  if (ClusterBlocks::rank() != 0) return 0;
  // A thread a token, in order.
  const bool exists = threadIdx.x < min(count, top_k);
  const uint64_t place = exists ? work.shared.sorted[threadIdx.x] : 0;
  const double weight = exists ? __expf(value_at(place)) : 0.0;
  const double before = sum_before(weight, reinterpret_cast<double*>(work.shared.warp_sums));
  auto* total = reinterpret_cast<double*>(work.shared.sums);
  if (threadIdx.x == kSampleThreads - 1) *total = before + weight;
  __syncthreads();
  const float top_p = work.params.top_p;
  const bool is_kept = threadIdx.x == 0 || top_p >= 1.0f || before < *total * top_p;
  Winner mine = {-INFINITY, 0};
  if (exists && is_kept) {
    mine = noisy(place, work.params.seed, work.params.position);
  }
  return id_at(
      work.reduce.of_block(mine, [](const Winner& a, const Winner& b) { return better(a, b); })
          .place);
}

// Reports a row that cannot be sampled and writes id 0, so that later kernels read a valid token.
__device__ void give_up(const CudaSampleCall& call, int64_t row, const CudaReport& report) {
  if (ClusterBlocks::rank() != 0) return;
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

// Writes the row's outputs; the first block calls it. `log_total` is ln(sum of e^logit).
__device__ void write_row(const SampleShared& shared, const CudaSampleCall& call, int64_t row,
                          int32_t id, double log_total) {
  const auto logprob = [&](int32_t token) {
    return static_cast<float>(static_cast<double>(call.logits[row * call.vocab + token]) -
                              log_total);
  };
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    call.token_ids[row] = id;
    call.logprobs[row] = logprob(id);
  }
  if (thread < call.num_top) {
    const int32_t listed = id_at(shared.top[thread]);
    call.top_token_ids[row * call.num_top + thread] = listed;
    call.top_logprobs[row * call.num_top + thread] = logprob(listed);
  }
}

// The token of a row without a given one. `raw_sum` is that of sum_raw if the row is unchanged.
struct Choice {
  int32_t id;
  double raw_sum;
};

template <bool kHeld, bool kChanges>
__device__ Choice choose(const RowWork<kHeld, kChanges>& work, const Peak& peak) {
  const SampleRow& params = work.params;
  // Greedy needs the sum for the log-probability only.
  if (params.temperature == 0.0f) return {peak.id, sum_raw(work, peak.largest)};
  const Scaling scaling = {peak.allowed, fminf(1.0f / params.temperature, FLT_MAX),
                           params.min_p > 0.0f ? logf(params.min_p) : -INFINITY};
  if (params.top_k > 0 && params.top_k <= kMaxListed) {
    const double raw_sum = scale_and_count(work, scaling, peak.largest);
    return {draw_listed(work, scaling), raw_sum};
  }
  const Tally tally = scale_and_tally(work, scaling, peak.largest, peak.id);
  return {draw(work, scaling, tally, peak.id), tally.raw_sum};
}

// One row. All branches depend on values that are the same in all threads of the cluster, so that
// all reach the same barriers.
template <bool kHeld, bool kChanges>
__device__ void sample_row(const RowWork<kHeld, kChanges>& work) {
  const CudaSampleCall& call = work.call;
  const Peak peak = find_peak(work);
  if (peak.has_nan != 0 || isinf(peak.largest)) return give_up(call, work.row, call.bad_logits);
  if (isinf(peak.allowed)) return give_up(call, work.row, call.nothing_left);
  if (call.num_top > 0) list_top(work, peak.largest);
  const Choice choice = choose(work, peak);
  if (ClusterBlocks::rank() != 0) return;
  write_row(work.shared, call, work.row, choice.id,
            static_cast<double>(peak.largest) + log(choice.raw_sum));
}

// The same for a row with entries, a mask or a given token. Log-probabilities are computed
// first, since they are of the logits as they came.
template <bool kHeld>
__device__ void sample_changed_row(const RowWork<kHeld, true>& work, const RowChanges& changes) {
  const CudaSampleCall& call = work.call;
  const Peak raw = find_peak(work);
  if (raw.has_nan != 0 || isinf(raw.largest)) return give_up(call, work.row, call.bad_logits);
  if (call.num_top > 0) list_top(work, raw.largest);
  const double log_total = static_cast<double>(raw.largest) + log(sum_raw(work, raw.largest));
  int32_t id = changes.given();
  if (id < 0) {
    // The barrier of sum_raw has passed: no thread reads the logits until the next one.
    changes.apply();
    sync_memory();
    const Peak peak = find_peak(work);
    const bool can_choose = !isinf(peak.allowed);
    if (can_choose) id = choose(work, peak).id;
    ClusterBlocks::sync();
    changes.restore();
    sync_memory();
    if (!can_choose) return give_up(call, work.row, call.nothing_left);
  }
  if (ClusterBlocks::rank() != 0) return;
  write_row(work.shared, call, work.row, id, log_total);
}

// grid: rows x blocks of a row, which are a cluster. kHeld: the row fits the blocks' shared memory.
template <bool kHeld, bool kChanges>
__global__ void __launch_bounds__(kSampleThreads, 2) sample_rows(CudaSampleCall call) {
  __shared__ SampleShared shared;
  __shared__ float4 fetched[kRowPieces];
  extern __shared__ float4 held[];
  let_next_kernel_start();
  wait_for_earlier_work();
  auto& params = reinterpret_cast<SampleRow&>(fetched);
  const int64_t row = blockIdx.x / ClusterBlocks::count();
  RowLogits view = {.logits = call.logits + row * call.vocab,
                    .vocab = call.vocab,
                    .aligned = call.aligned,
                    .suppressed = call.suppressed + row * call.num_suppressed,
                    .num_suppressed = call.num_suppressed,
                    .allowed = nullptr};
  Reducer reduce(shared);
  if constexpr (kChanges) {
    const RowChanges changes(call, row);
    view.allowed = changes.allowed();
    const Tokens<kHeld, kChanges> tokens(shared, view, held);
    const RowWork<kHeld, kChanges> work{shared, params, tokens, reduce, call, row};
    begin_row(shared, tokens);
    changes.any() ? sample_changed_row(work, changes) : sample_row(work);
  } else {
    const Tokens<kHeld, kChanges> tokens(shared, view, held);
    begin_row(shared, tokens);
    sample_row(RowWork<kHeld, kChanges>{shared, params, tokens, reduce, call, row});
  }
  ClusterBlocks::sync();  // no block leaves while another may reach into its shared memory
}

template <bool kChanges>
auto kernel_of(bool holds) {
  return holds ? sample_rows<true, kChanges> : sample_rows<false, kChanges>;
}

void launch(CudaStream& stream, const CudaSampleCall& call) {
  const cudaDeviceProp& properties = stream.cuda_device().properties();
  const bool has_clusters = properties.major >= 9;
  const int num_blocks = has_clusters && call.vocab > kVocabOfOneBlock ? kMaxRowBlocks : 1;
  const size_t held_bytes = sizeof(float4) * kSampleThreads *
                            static_cast<size_t>(groups_of_a_thread(call.vocab, num_blocks));
  // A vocabulary that does not fit is read from memory in every pass.
  const bool holds = held_bytes + sizeof(SampleShared) <= properties.sharedMemPerBlockOptin;
  const bool changes =
      call.given != nullptr || call.masks != nullptr || call.adjustments.begin != nullptr;
  void (*kernel)(CudaSampleCall) = changes ? kernel_of<true>(holds) : kernel_of<false>(holds);
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(call.num_rows * num_blocks)),
                             .block = dim3(kSampleThreads),
                             .shared_bytes = holds ? held_bytes : 0,
                             .cluster_blocks = num_blocks};
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shape.shared_bytes)),
             "cudaFuncSetAttribute");
  launch_early(stream, kernel, shape, call);
}

}  // namespace

void CudaOps::sample(Stream& on, const SampleArgs& args) const {
  CudaStream& stream = as_cuda(on);
  CudaSampleCall call{make_sample_call(args)};
  call.aligned = args.logits.dim(1) % 4 == 0 && is_aligned(args.logits.bytes());
  SLUICE_CHECK(call.num_top <= kMaxListed, "sample: {} log-probabilities a row; at most {} on CUDA",
               call.num_top, kMaxListed);
  if (call.num_rows == 0) return;
  stream.submit("sample", [&](cudaStream_t) {
    call.bad_logits = stream.report("sample", kLogitsNotFinite);
    call.nothing_left =
        stream.report("sample", "row {} has no token left to choose: all are suppressed or -inf");
    launch(stream, call);
  });
}

}  // namespace sluice::cuda
