// RMSNorm on the CPU. Bound by memory: an element comes from DRAM once; the second pass over its
// row, which scales it, finds it in the cache. Thread rule: enqueue only; rows run on the stream's
// team.
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_tasks.h"
#include "ops/cpu/rows/kernels.h"

namespace sluice::cpu {
namespace {

struct RmsNormCall {
  const uint16_t* x;       // bf16 [num_rows][hidden]
  uint16_t* residual;      // the same shape, updated in place; or null
  const uint16_t* weight;  // bf16 [hidden]
  uint16_t* out;           // as x, and may be x
  int64_t num_rows;
  int64_t hidden;
  float eps;
  float weight_offset;
  const RowKernels* kernels;
};

// Rows [begin, end). With a residual, its updated row is what the norm reads.
void norm_rows(const RmsNormCall& call, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = row * call.hidden;
    const uint16_t* source = call.x + offset;
    if (call.residual != nullptr) {
      call.kernels->add(source, call.residual + offset, call.hidden);
      source = call.residual + offset;
    }
    uint16_t* out = call.out + offset;
    if (call.weight_offset == 0.0f) {
      call.kernels->norm(source, call.weight, out, call.hidden, call.eps);
    } else {
      call.kernels->offset_norm(source, call.weight, out, call.hidden, call.eps,
                                call.weight_offset);
    }
  }
}

}  // namespace

void CpuOps::rms_norm(Stream& stream, const RmsNormArgs& args) const {
  const RmsNormCall call{
      .x = reinterpret_cast<const uint16_t*>(args.x.bytes()),
      .residual = reinterpret_cast<uint16_t*>(args.residual.bytes()),
      .weight = reinterpret_cast<const uint16_t*>(args.weight.bytes()),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .num_rows = args.x.dim(0),
      .hidden = args.x.dim(1),
      .eps = args.eps,
      .weight_offset = args.weight_offset,
      .kernels = &row_kernels(isa_),
  };
  as_cpu(stream).submit("rms_norm", [call](ThreadTeam& team) {
    for_row_ranges(team, call.num_rows, call.hidden,
                   [&](int64_t begin, int64_t end) { norm_rows(call, begin, end); });
  });
}

}  // namespace sluice::cpu
