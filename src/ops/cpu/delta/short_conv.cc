// The short convolution on the CPU. Bound by memory: a row is read once for each tap, from the
// cache, and written once.
//
// Thread rule: enqueue only. Rows run on the stream's team; the windows are written after all rows,
// since rows of the same call read the old ones.
#include <cstring>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta/kernels.h"
#include "ops/cpu/delta/sequence_part.h"
#include "ops/cpu/row_tasks.h"

namespace sluice::cpu {
namespace {

// The args as plain pointers.
struct ConvCall {
  const uint16_t* x;  // bf16 [num_rows][width]
  int64_t width;
  const float* taps;
  PassRows rows;
  DeltaStates states;
  float* out;
  const DeltaKernels* kernels;

  int64_t num_channels() const { return states.shape.num_channels(); }
  int64_t window_rows() const { return states.shape.num_taps - 1; }

  // The inputs `back` rows before a row of the part: of the call, of the window, or null before
  // position 0.
  const uint16_t* input(const SequencePart& part, int64_t row, int64_t back) const {
    const int64_t at = row - back;
    if (at >= part.begin) return x + at * width;
    if (part.from < 0) return nullptr;
    return states.window(part.from) + (window_rows() - (part.begin - at)) * num_channels();
  }
};

void conv_rows(const ConvCall& call, int64_t begin, int64_t end) {
  const int64_t num_taps = call.states.shape.num_taps;
  for (int64_t seq = 0; seq < call.rows.num_seqs; ++seq) {
    const SequencePart part = part_of(call.rows, seq);
    if (part.empty()) continue;
    for (int64_t row = std::max(begin, part.begin); row < std::min(end, part.end); ++row) {
      const uint16_t* inputs[kMaxConvTaps];
      for (int64_t j = 0; j < num_taps; ++j) inputs[j] = call.input(part, row, num_taps - 1 - j);
      call.kernels->conv({.inputs = inputs,
                          .taps = call.taps,
                          .out = call.out + row * call.num_channels(),
                          .num_taps = num_taps,
                          .num_channels = call.num_channels()});
    }
  }
}

// Ascending, so that a window that is moved in place is read before it is overwritten.
void write_window(const ConvCall& call, int64_t seq) {
  const SequencePart part = part_of(call.rows, seq);
  if (part.empty()) return;
  const size_t num_bytes = static_cast<size_t>(call.num_channels()) * sizeof(uint16_t);
  uint16_t* to = call.states.window(part.to);
  for (int64_t i = 0; i < call.window_rows(); ++i, to += call.num_channels()) {
    const uint16_t* input = call.input(part, part.end - 1, call.window_rows() - 1 - i);
    if (input == nullptr) {
      std::memset(to, 0, num_bytes);
    } else {
      std::memmove(to, input, num_bytes);
    }
  }
}

}  // namespace

void CpuOps::short_conv(Stream& stream, const ShortConvArgs& args) const {
  const ConvCall call{.x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
                      .width = args.x.dim(1),
                      .taps = args.taps.data<float>(),
                      .rows = PassRows::of(args.rows, args.x.dim(0), args.states.num_slots),
                      .states = args.states,
                      .out = args.out.data<float>(),
                      .kernels = &delta_kernels(isa_)};
  as_cpu(stream).submit("short_conv", [call](ThreadTeam& team) {
    const int64_t cost = call.num_channels() * call.states.shape.num_taps;
    for_row_ranges(team, call.rows.num_rows, cost,
                   [&](int64_t begin, int64_t end) { conv_rows(call, begin, end); });
    for_row_ranges(team, call.rows.num_seqs, cost, [&](int64_t begin, int64_t end) {
      for (int64_t seq = begin; seq < end; ++seq) write_window(call, seq);
    });
  });
}

}  // namespace sluice::cpu
