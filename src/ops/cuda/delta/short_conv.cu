// The short convolution on CUDA.
//
// Bound: bytes, 6 a channel and row; instructions, some 50, of which the exponential and the
// quotient are most. Tile: 128 channels and 16 rows of a sequence, a channel a thread. Compiled
// without contraction, as ops/portable_math.h requires: the bits are those of the CPU. Thread rule:
// enqueue only.
#include "device/cuda/cuda_stream.h"
#include "device/cuda/early_launch.cuh"
#include "ops/cuda/common.cuh"
#include "ops/cuda/delta/delta_rule.cuh"
#include "ops/cuda/delta/delta_rule.h"
#include "ops/cuda/delta/sequence_part.cuh"
#include "ops/portable_math.h"

namespace sluice::cuda {
namespace {

// ShortConvArgs as plain pointers and sizes.
struct ConvCall {
  const uint16_t* x;  // bf16 [num_rows][width]
  const float* taps;  // [num_taps][num_channels]
  float* out;         // [num_rows][num_channels]
  PassRows rows;
  DeltaStates states;
  int32_t width;
  int32_t num_channels;
  int32_t num_taps;
};

constexpr int kConvThreads = 128;
// Of a thread. More than the rows of a window, so that the first tile of a sequence alone reads it.
constexpr int kConvRows = 16;
static_assert(kConvRows >= kMaxConvTaps - 1);
constexpr int kPublishedTaps = 4;  // of all models that there are

// The inputs of row `at` of the part, which may lie before it: in the window that was read, or
// before position 0, where there are none (null).
__device__ inline const uint16_t* input(const ConvCall& call, const SequencePart& part,
                                        int32_t at) {
  if (at >= part.begin) return call.x + static_cast<int64_t>(at) * call.width;
  if (part.from < 0) return nullptr;
  const int32_t row = call.num_taps - 1 - (part.begin - at);
  return window_in(call.states, part.from) + static_cast<int64_t>(row) * call.num_channels;
}

// The factors of a channel. kTaps: how many there are, or the most if it is not known.
template <int kTaps>
struct Taps {
  float factors[kTaps];

  __device__ Taps(const ConvCall& call, int32_t channel) {
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      factors[j] = is_there(call, j) && channel < call.num_channels
                       ? call.taps[j * call.num_channels + channel]
                       : 0.0f;
    }
  }
  __device__ static bool is_there(const ConvCall& call, int j) {
    return kTaps < kMaxConvTaps || j < call.num_taps;
  }
};

// A row of the first tile of a part, whose inputs may lie in the window. All of them are asked for
// before the first one is used. Taps are added in ascending order to a zero, as on the CPU; rows
// that are not there are left out, since a product with zero could change the sign of a zero.
template <int kTaps>
__device__ inline void convolve_row(const ConvCall& call, const SequencePart& part, int32_t row,
                                    int32_t channel, const Taps<kTaps>& taps) {
  const int32_t num_taps = kTaps < kMaxConvTaps ? kTaps : call.num_taps;
  // A loop that loads and adds in turn would wait for each load.
  uint16_t inputs[kTaps];
  bool is_there[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    const uint16_t* x =
        taps.is_there(call, j) ? input(call, part, row - (num_taps - 1 - j)) : nullptr;
    is_there[j] = x != nullptr;
    inputs[j] = is_there[j] ? x[channel] : uint16_t{0};
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    if (is_there[j]) sum += taps.factors[j] * bf16_to_float(inputs[j]);
  }
  call.out[static_cast<int64_t>(row) * call.num_channels + channel] = silu_of(sum);
}

// Rows [begin, end), if there are any, past the first tile of their part: all their inputs are in
// the call. They stay in registers from row to row, so that each is loaded once.
template <int kTaps>
__device__ inline void convolve_rows(const ConvCall& call, int32_t begin, int32_t end,
                                     int32_t channel, const Taps<kTaps>& taps) {
  if (begin >= end) return;  // rows before `begin` need not be there then
  const uint16_t* x = call.x + static_cast<int64_t>(begin - (kTaps - 1)) * call.width + channel;
  float* out = call.out + static_cast<int64_t>(begin) * call.num_channels + channel;
  float inputs[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps - 1; ++j, x += call.width) {
    inputs[j + 1] = bf16_to_float(*x);
  }
  // The loads and the chains of products of four rows overlap.
#pragma unroll 4
  for (int32_t row = begin; row < end; ++row, x += call.width, out += call.num_channels) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) inputs[j] = inputs[j + 1];
    inputs[kTaps - 1] = bf16_to_float(*x);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum += taps.factors[j] * inputs[j];
    *out = silu_of(sum);
  }
}

// The channel's newest inputs, all read before one is written: the window may move in place.
__device__ inline void write_window(const ConvCall& call, const SequencePart& part,
                                    int32_t channel) {
  uint16_t values[kMaxConvTaps - 1] = {};
#pragma unroll
  for (int i = 0; i < kMaxConvTaps - 1; ++i) {
    if (i >= call.num_taps - 1) continue;
    const uint16_t* x = input(call, part, part.end - (call.num_taps - 1) + i);
    if (x != nullptr) values[i] = x[channel];
  }
  uint16_t* to = window_in(call.states, part.to) + channel;
#pragma unroll
  for (int i = 0; i < kMaxConvTaps - 1; ++i) {
    if (i < call.num_taps - 1) to[static_cast<int64_t>(i) * call.num_channels] = values[i];
  }
}

// grid: channels; the first rows of each sequence, then tiles of the call's rows, of which those
// are left out. The thread that reads a channel of a window is the one that writes it, if both are
// one, after it has read.
template <int kTaps>
__global__ void __launch_bounds__(kConvThreads) convolve(const ConvCall call) {
  let_next_kernel_start();
  const auto channel = static_cast<int32_t>(blockIdx.x * kConvThreads + threadIdx.x);
  const auto tile = static_cast<int32_t>(blockIdx.y) - call.rows.num_seqs;
  const int32_t begin = tile * kConvRows;
  int32_t seq = tile < 0 ? static_cast<int32_t>(blockIdx.y) : sequence_of(call.rows, begin);
  SequencePart part = part_of(call.rows, seq);
  // Factors are weights: no kernel writes them.
  const Taps<kTaps> taps(call, channel);
  wait_for_earlier_work();
  if (channel >= call.num_channels) return;
  if (tile < 0) {
    if (part.is_empty()) return;
    const int32_t end = min(part.end, part.begin + kConvRows);
    for (int32_t row = part.begin; row < end; ++row) convolve_row(call, part, row, channel, taps);
    write_window(call, part, channel);
    return;
  }
  const int32_t end = min(call.rows.num_rows, begin + kConvRows);
  while (true) {
    if (!part.is_empty()) {
      const int32_t first = max(begin, part.begin + kConvRows);
      const int32_t last = min(end, part.end);
      if constexpr (kTaps < kMaxConvTaps) {
        convolve_rows(call, first, last, channel, taps);
      } else {
        for (int32_t row = first; row < last; ++row) convolve_row(call, part, row, channel, taps);
      }
    }
    if (++seq >= call.rows.num_seqs || call.rows.row_begin[seq] - call.rows.first_row >= end) break;
    part = part_of(call.rows, seq);
  }
}

}  // namespace

void launch_short_conv(CudaStream& stream, const ShortConvArgs& args, const CudaReport& report) {
  const DeltaShape& shape = args.states.shape;
  const int64_t num_rows = args.x.dim(0);
  ConvCall call{.x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
                .taps = args.taps.data<float>(),
                .out = args.out.data<float>(),
                .rows = pass_rows(args.rows, num_rows, args.states.num_slots),
                .states = args.states,
                .width = static_cast<int32_t>(args.x.dim(1)),
                .num_channels = static_cast<int32_t>(shape.num_channels()),
                .num_taps = shape.num_taps};
  call.rows.report = report;
  int64_t num_tiles = call.rows.num_seqs;
  if (max_part_rows(args.rows, num_rows) > kConvRows) {
    num_tiles += (num_rows + kConvRows - 1) / kConvRows;
  }
  const dim3 grid(static_cast<unsigned>((call.num_channels + kConvThreads - 1) / kConvThreads),
                  static_cast<unsigned>(num_tiles));
  const auto kernel =
      shape.num_taps == kPublishedTaps ? convolve<kPublishedTaps> : convolve<kMaxConvTaps>;
  launch_early(stream, kernel, {grid, dim3(kConvThreads)}, call);
}

}  // namespace sluice::cuda
