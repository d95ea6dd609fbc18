// Scattered runs of host memory, by copies and by a kernel: where the one becomes better.
//
// Used by `sluice bench transfer`, which shows the rates, and by `sluice doctor`, which keeps what
// follows from them. Thread rule: main thread, nothing else running.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/bench/transfer.h"

namespace sluice::cli {

struct RunLength {
  size_t run_bytes = 0;
  Spread by_copies;  // bytes per second, to the device
  Spread by_kernel;  // ops/copy_blocks.h
};

// Runs of 4 KiB to 8 MiB in an order in which none follows its neighbour.
std::vector<RunLength> measure_run_lengths(const TransferBench& bench);

// The shortest run from which on copies reach 95 % of the kernel's rate: they leave the
// multiprocessors alone, so a little less is as good. Twice the longest one when none does.
size_t choose_copy_run_bytes(const std::vector<RunLength>& lengths);

}  // namespace sluice::cli
