// The gated norm after the delta rule, and the output gate of attention. Bound by memory. Thread
// rule: enqueue only; rows run on the stream's team.
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta/kernels.h"
#include "ops/cpu/row_tasks.h"

namespace sluice::cpu {
namespace {

// The args as plain pointers.
struct GatedNormCall {
  const float* x;        // [num_rows][width]
  const uint16_t* gate;  // bf16 [num_rows][gate_width], from the first column that is used
  int64_t gate_width;
  const float* weight;  // [dim]
  uint16_t* out;        // bf16 [num_rows][width]
  int64_t num_rows;
  int64_t width;
  int64_t dim;
  float eps;
  const DeltaKernels* kernels;
};

// Heads one after the other: each has its own root mean square, and all share the weight.
void norm_row(const GatedNormCall& call, int64_t row) {
  for (int64_t column = 0; column < call.width; column += call.dim) {
    call.kernels->gated_norm({.x = call.x + row * call.width + column,
                              .gate = call.gate + row * call.gate_width + column,
                              .weight = call.weight,
                              .out = call.out + row * call.width + column,
                              .dim = call.dim,
                              .eps = call.eps});
  }
}

}  // namespace

void CpuOps::gated_norm(Stream& stream, const GatedNormArgs& args) const {
  const GatedNormCall call{
      .x = args.x.data<float>(),
      .gate = reinterpret_cast<const uint16_t*>(args.gate.bytes()) + args.gate_column,
      .gate_width = args.gate.dim(1),
      .weight = args.weight.data<float>(),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.x.dim(0),
      .width = args.x.dim(1),
      .dim = args.weight.dim(0),
      .eps = args.eps,
      .kernels = &delta_kernels(isa_)};
  as_cpu(stream).submit("gated_norm", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_rows, call.width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) norm_row(call, row);
    });
  });
}

void CpuOps::delta_mixer(Stream& stream, const DeltaMixerArgs& args) const {
  short_conv(stream, args.conv);
  delta_rule(stream, args.rule);
  gated_norm(stream, args.norm);
}

void CpuOps::sigmoid_gate(Stream& stream, const SigmoidGateArgs& args) const {
  auto* const x = reinterpret_cast<uint16_t*>(args.x.bytes());
  const auto* const gate = reinterpret_cast<const uint16_t*>(args.gate.bytes());
  const int64_t width = args.x.dim(1), num_rows = args.x.dim(0);
  const DeltaKernels* const kernels = &delta_kernels(isa_);
  as_cpu(stream).submit("sigmoid_gate", [=](ThreadTeam& team) {
    for_row_ranges(team, num_rows, width, [&](int64_t begin, int64_t end) {
      kernels->sigmoid_gate(x + begin * width, gate + begin * width, (end - begin) * width);
    });
  });
}

}  // namespace sluice::cpu
