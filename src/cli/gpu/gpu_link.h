// Measurements of the GPU's link by `sluice doctor`, kept in a file for later runs.
//
// Thread rule: main thread, with no other work on the GPU.
#pragma once

#include <cstddef>
#include <string>

#include "cli/bench/link.h"

namespace sluice::cli {

// Rates are medians of several measurements, in bytes per second.
struct LinkFindings {
  LinkRates link;
  double pinning_bytes_per_second = 0;
  size_t copy_run_bytes = 0;  // shortest run that copies serve best: KvOptions::copy_bytes
  std::string kept_in;        // path of the profile file; empty: not written
  std::string why_not_kept;   // the reason if kept_in is empty
};

// Measures the first GPU; takes a few seconds. Errors: those of make_device; kDoesNotFit.
LinkFindings measure_gpu_link();

}  // namespace sluice::cli
