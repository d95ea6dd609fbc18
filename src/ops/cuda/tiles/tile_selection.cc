// Selection of tile masks on CUDA: no kernels yet, and a clear error instead.
#include "core/error.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/cuda_ops.h"

namespace sluice::cuda {
namespace {

[[noreturn]] void refuse(const char* op, Stream& stream) {
  fail(ErrorCode::kUnsupported, "{} has no kernel on {} yet; use the CPU device", op,
       stream.device().info().name);
}

}  // namespace

void CudaOps::score_tiles(Stream& stream, const ScoreTilesArgs&) const {
  refuse("score_tiles", stream);
}

void CudaOps::select_tiles(Stream& stream, const SelectTilesArgs&) const {
  refuse("select_tiles", stream);
}

}  // namespace sluice::cuda
