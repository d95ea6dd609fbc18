// Compares copies and a kernel for scattered runs of host memory, by length of run.
//
// Used by `sluice-lab transfer`, which prints the rates, and by `sluice doctor`, which stores the
// threshold derived from them. Thread rule: main thread, with no other load.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/bench/link.h"

namespace sluice::cli {

// Rates to the device for runs of one length, in bytes per second.
struct RunLength {
  size_t run_bytes = 0;
  Spread by_copies;  // one copy per run
  Spread by_kernel;  // ops/pages/copy_blocks.h: one launch for all runs
};

// Measures runs of 4 KiB to 8 MiB, by powers of two, in an order in which no run follows its
// neighbour.
std::vector<RunLength> measure_run_lengths(const TransferBench& bench);

// The shortest run from which on copies reach 95 % of the kernel's rate. Twice the longest run
// measured if none does. REQUIRES: at least one length, in ascending order.
size_t choose_copy_run_bytes(const std::vector<RunLength>& lengths);

}  // namespace sluice::cli
