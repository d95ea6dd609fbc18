// RMSNorm on the CPU. Bound by memory: every element is read twice from cache and once from DRAM.
#include "ops/cpu/norm.h"

#include <cmath>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/scalar_math.h"

namespace sluice::cpu {
namespace {

struct RmsNormCall {
  const uint16_t* x;
  uint16_t* residual;  // or null
  const uint16_t* weight;
  uint16_t* out;
  int64_t num_rows;
  int64_t hidden;
  float eps;
};

// residual = bf16(residual + x).
void add_row(const uint16_t* x, uint16_t* residual, int64_t hidden) {
  for (int64_t i = 0; i < hidden; ++i) {
    residual[i] = round_to_bf16(bf16_to_float(residual[i]) + bf16_to_float(x[i]));
  }
}

// `row` may be `out`.
void norm_row(const uint16_t* row, const uint16_t* weight, uint16_t* out, int64_t hidden,
              float eps) {
  const float mean = sum_of_squares(row, hidden) / static_cast<float>(hidden);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < hidden; ++i) {
    out[i] = round_to_bf16(bf16_to_float(weight[i]) * (bf16_to_float(row[i]) * scale));
  }
}

void norm_rows(const RmsNormCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * call.hidden;
    const uint16_t* source = call.x + offset;
    if (call.residual != nullptr) {
      add_row(source, call.residual + offset, call.hidden);
      source = call.residual + offset;
    }
    norm_row(source, call.weight, call.out + offset, call.hidden, call.eps);
  }
}

}  // namespace

void rms_norm(CpuStream& stream, const RmsNormArgs& args) {
  const RmsNormCall call{
      .x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
      .residual = reinterpret_cast<uint16_t*>(args.residual.bytes()),
      .weight = reinterpret_cast<const uint16_t*>(args.weight.bytes()),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.x.dim(0),
      .hidden = args.x.dim(1),
      .eps = args.eps,
  };
  stream.submit("rms_norm", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_rows, call.hidden,
                   [&](int64_t begin, int64_t end) { norm_rows(call, begin, end); });
  });
}

}  // namespace sluice::cpu
