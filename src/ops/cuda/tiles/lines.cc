// Lines on CUDA: no kernels yet, and a clear error instead.
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

void CudaOps::score_line_rows(Stream& stream, const ScoreLineRowsArgs&) const {
  refuse("score_line_rows", stream);
}

void CudaOps::score_lines(Stream& stream, const ScoreLinesArgs&) const {
  refuse("score_lines", stream);
}

void CudaOps::select_diagonals(Stream& stream, const SelectDiagonalsArgs&) const {
  refuse("select_diagonals", stream);
}

}  // namespace sluice::cuda
