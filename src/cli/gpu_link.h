// What `sluice doctor` measures of the GPU's link, and keeps for later runs.
//
// Thread rule: main thread, nothing else running.
#pragma once

#include <cstddef>
#include <string>

#include "cli/bench/link.h"

namespace sluice::cli {

struct LinkFindings {
  LinkRates link;
  double pinning_bytes_per_second = 0;
  size_t copy_run_bytes = 0;  // KvOptions::copy_bytes, measured
  std::string kept_in;        // the file for later runs; empty: not kept
  std::string why_not_kept;
};

// Of the first GPU. Takes about three seconds. Errors: those of make_device; kDoesNotFit.
LinkFindings measure_gpu_link();

}  // namespace sluice::cli
