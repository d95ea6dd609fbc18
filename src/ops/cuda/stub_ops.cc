// Linked instead of the table of CUDA kernels in a build without them. Such a build creates no CUDA
// device, but plans for one (sluice/inspect.h), which asks for sizes alone.
#include "core/error.h"
#include "ops/cuda/cuda_ops_door.h"
#include "ops/cuda/op_memory.h"

namespace sluice {
namespace {

// Sizes are right; a kernel that is called is a defect of the caller.
class AbsentOps final : public Ops {
 public:
  size_t memory_bytes(const OpNeeds& needs) const override {
    return cuda::stream_memory_bytes(needs);
  }
  void prepare(Stream&, const OpNeeds&) const override { refuse(); }
  size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols,
                             WeightFormat format) const override {
    return cuda::row_major_bytes(num_rows, num_cols, format);
  }
  bool keeps_gguf(WeightFormat format) const override { return cuda::has_gguf_kernels(format); }

#define SLUICE_ABSENT_OP(name, Args) \
  void name(Stream&, const Args&) const override { refuse(); }
  SLUICE_CORE_OPS(SLUICE_ABSENT_OP)
  SLUICE_EXPERT_OPS(SLUICE_ABSENT_OP)
  SLUICE_DELTA_OPS(SLUICE_ABSENT_OP)
  SLUICE_PAGE_OPS(SLUICE_ABSENT_OP)
  SLUICE_TILE_OPS(SLUICE_ABSENT_OP)
#undef SLUICE_ABSENT_OP

 private:
  [[noreturn]] static void refuse() {
    check_failed("a build with CUDA kernels", "this one has none");
  }
};

}  // namespace

const Ops& cuda_ops() {
  static const AbsentOps table;
  return table;
}

}  // namespace sluice
