// sampled as probes of kind kRows.
#include "attention/policies/sampled.h"

namespace sluice {
namespace {

constexpr double kCoverage = 0.95;
constexpr int32_t kProbeRows = 4;

}  // namespace

SampledPolicy::SampledPolicy(const SparseOptions& options)
    : ProbePolicy(
          "sampled", options, coverage_choice(options, kCoverage),
          {.kind = TileProbeKind::kRows,
           .rows_per_tile = power_of_two("sparse_probe_rows", options.probe_rows, kProbeRows)}) {}

}  // namespace sluice
