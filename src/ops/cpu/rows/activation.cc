// SwiGLU and row gathering on the CPU. Both are bound by memory.
//
// A *Call struct is the args as plain pointers: tasks run after the call has returned and must not
// refer to its args. Thread rule: enqueue only; ranges of rows run on the stream's team.
#include <cstring>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/rows/kernels.h"

namespace sluice::cpu {
namespace {

struct SwigluCall {
  const uint16_t* gate_up;  // bf16 [num_rows][2 * intermediate]: gate, then up
  uint16_t* out;            // bf16 [num_rows][intermediate]
  int64_t num_rows;
  int64_t intermediate;
  const RowKernels* kernels;
};

struct GatherCall {
  const uint16_t* x;       // bf16 [num_rows][hidden]
  const int32_t* indices;  // [num_indices]
  uint16_t* out;           // bf16 [num_indices][hidden]
  int64_t num_rows;        // of x
  int64_t num_indices;
  int64_t hidden;
};

// Copies rows [begin, end) of the output. Indices are checked here, since only now are they known.
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

void CpuOps::swiglu(Stream& stream, const SwigluArgs& args) const {
  const SwigluCall call{
      .gate_up = reinterpret_cast<const uint16_t*>(args.gate_up.bytes()),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.out.dim(0),
      .intermediate = args.out.dim(1),
      .kernels = &row_kernels(isa_),
  };
  as_cpu(stream).submit("swiglu", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_rows, call.intermediate, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const uint16_t* gate = call.gate_up + row * 2 * call.intermediate;
        call.kernels->swiglu(gate, gate + call.intermediate, call.out + row * call.intermediate,
                             call.intermediate);
      }
    });
  });
}

void CpuOps::gather_rows(Stream& stream, const GatherRowsArgs& args) const {
  const GatherCall call{
      .x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
      .indices = args.indices.data<int32_t>(),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.x.dim(0),
      .num_indices = args.out.dim(0),
      .hidden = args.x.dim(1),
  };
  as_cpu(stream).submit("gather_rows", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_indices, call.hidden,
                   [&](int64_t begin, int64_t end) { gather(call, begin, end); });
  });
}

}  // namespace sluice::cpu
