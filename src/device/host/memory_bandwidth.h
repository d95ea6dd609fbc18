// Measures the read bandwidth of this machine's DRAM, the bound of decoding on the CPU device.
//
// Used by lab/kernels and by `sluice bench` and `sluice doctor`. Thread rule: one caller at a time;
// other work on the machine lowers the number.
#pragma once

namespace sluice {

// Bytes per second that `num_threads` threads read together, each its own part of a buffer in huge
// pages that exceeds most last-level caches. The fastest of several passes, since a bound that
// other programs lowered would make results look better than they are.
// Cost: 512 MiB of memory, freed on return, and about half a second.
// Errors: kDoesNotFit if the memory cannot be allocated.
double measure_dram_read_bytes_per_second(int num_threads);

}  // namespace sluice
