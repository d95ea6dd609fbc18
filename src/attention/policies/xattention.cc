// xattention as probes of kind kAntidiagonal.
#include "attention/policies/xattention.h"

namespace sluice {
namespace {

constexpr double kXAttentionCoverage = 0.9;
constexpr int32_t kStride = 16;

}  // namespace

XAttentionPolicy::XAttentionPolicy(const SparseOptions& options)
    : ProbePolicy("xattention", options, coverage_choice(options, kXAttentionCoverage),
                  {.kind = TileProbeKind::kAntidiagonal,
                   .stride = power_of_two("sparse_stride", options.stride, kStride)}) {}

}  // namespace sluice
