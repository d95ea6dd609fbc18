// Key bounds, page scores and page lists on CUDA.
//
// Called by cuda/cuda_ops only; the contract is ops/page_selection.h. Shapes were checked before
// this point. Thread rule: enqueue only.
#pragma once

#include "device/cuda/cuda_stream.h"
#include "ops/page_selection.h"

namespace sluice::cuda {

void update_key_bounds(CudaStream& stream, const UpdateKeyBoundsArgs& args);

void score_pages(CudaStream& stream, const ScorePagesArgs& args);

// Errors: a list that does not fit is reported by its number (sequence, head and query page, the
// last running fastest), and gets no pages.
void select_pages(CudaStream& stream, const SelectPagesArgs& args);

}  // namespace sluice::cuda
