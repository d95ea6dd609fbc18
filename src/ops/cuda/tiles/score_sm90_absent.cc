// Linked instead of the Hopper kernels in a build without sm_90a.
#include "ops/cuda/tiles/columns_call.h"
#include "ops/cuda/tiles/score_call.h"

namespace sluice::cuda {
namespace {

bool fits_nothing(const ScoreCall&) { return false; }
bool fits_no_columns(const ColumnsCall&, size_t) { return false; }

}  // namespace

ScoreKernel score_hopper_probes_kernel() { return {.fits = fits_nothing}; }
ScoreKernel score_hopper_rows_kernel() { return {.fits = fits_nothing}; }
ScoreKernel score_hopper_cells_kernel() { return {.fits = fits_nothing}; }
HopperColumns score_hopper_columns() { return {.fits = fits_no_columns}; }

}  // namespace sluice::cuda
