// SwiGLU and row gathering on the CPU. Both are bound by memory.
#include "ops/cpu/activation.h"

#include <cstring>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/scalar_math.h"

namespace sluice::cpu {
namespace {

struct SwigluCall {
  const uint16_t* gate_up;
  uint16_t* out;
  int64_t num_rows;
  int64_t intermediate;
};

void swiglu_row(const uint16_t* __restrict gate, const uint16_t* __restrict up,
                uint16_t* __restrict out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float x = bf16_to_float(gate[i]);
    out[i] = round_to_bf16(x / (1.0f + fast_exp(-x)) * bf16_to_float(up[i]));
  }
}

struct GatherCall {
  const uint16_t* x;
  const int32_t* indices;
  uint16_t* out;
  int64_t num_rows;  // of x
  int64_t num_indices;
  int64_t hidden;
};

void gather(const GatherCall& call, int64_t begin, int64_t end) {
  const size_t row_bytes = static_cast<size_t>(call.hidden) * sizeof(uint16_t);
  for (int64_t i = begin; i < end; ++i) {
    const int32_t row = call.indices[i];
    SLUICE_CHECK(row >= 0 && row < call.num_rows, "gather_rows: indices[{}] is {} of {} rows", i,
                 row, call.num_rows);
    std::memcpy(call.out + i * call.hidden, call.x + row * call.hidden, row_bytes);
  }
}

}  // namespace

void swiglu(CpuStream& stream, const SwigluArgs& args) {
  const SwigluCall call{
      .gate_up = reinterpret_cast<const uint16_t*>(args.gate_up.bytes()),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.out.dim(0),
      .intermediate = args.out.dim(1),
  };
  stream.submit("swiglu", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_rows, call.intermediate, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const uint16_t* gate = call.gate_up + row * 2 * call.intermediate;
        swiglu_row(gate, gate + call.intermediate, call.out + row * call.intermediate,
                   call.intermediate);
      }
    });
  });
}

void gather_rows(CpuStream& stream, const GatherRowsArgs& args) {
  const GatherCall call{
      .x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
      .indices = args.indices.data<int32_t>(),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.x.dim(0),
      .num_indices = args.out.dim(0),
      .hidden = args.x.dim(1),
  };
  stream.submit("gather_rows", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_indices, call.hidden,
                   [&](int64_t begin, int64_t end) { gather(call, begin, end); });
  });
}

}  // namespace sluice::cpu
