// How fast this machine reads its DRAM: the bound that decoding is measured against.
//
// Used by bench/ and by `sluice bench` and `sluice doctor`. Thread rule: one caller at a time;
// other work on the machine lowers the number.
#pragma once

namespace sluice {

// Bytes per second that `num_threads` threads read together, each its own share of a buffer far
// larger than the last-level cache, in huge pages where the system grants them: the best of several
// passes, so that a bound is never flattered by a disturbance.
// Cost: 512 MiB of memory and about half a second, given back on return.
// Errors: kDoesNotFit when the memory is not there.
double measure_dram_read_bytes_per_second(int num_threads);

}  // namespace sluice
