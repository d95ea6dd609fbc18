// The ops of columns for a window of rows at the end of a prompt of a million tokens.
//
// Used by cuda_tiles_bench. Thread rule: main thread.
#pragma once

#include <cstdint>

#include "cuda_workbench.h"

namespace sluice::bench {

// Prints the time of each op of ops/tiles/tile_columns.h for the last `num_rows` rows, beside dense
// attention of these rows and the rate of copies, in bytes per second.
void print_columns(Workbench& bench, int32_t num_rows, double copy_rate);

}  // namespace sluice::bench
