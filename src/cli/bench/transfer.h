// What `sluice bench transfer` measures: the shapes in which KV crosses the link.
//
// transfer.cc is the command; transfer_copies.cc measures plain copies and gathers, run_lengths.cc
// scattered runs, transfer_kv.cc the same bytes through the OffloadEngine. Thread rule: main
// thread, nothing else running.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/link.h"

namespace sluice::cli {

// How the name of measure_engine's group begins.
inline constexpr const char* kEngineGroup = "through the offload engine";

// One measured shape.
struct Transfer {
  std::string group;      // "copies back to back"
  std::string row;        // of the group's table: "64.0 KiB"
  std::string way;        // its column: "H2D strided"
  size_t unit_bytes = 0;  // of the copy, row, run or block that the row is about
  Spread bytes_per_second;
  Spread LinkRates::*bound = nullptr;  // one large copy in that direction, or both at once
};

// What is measured on and with. One stream for each direction.
struct TransferBench {
  Device& device;
  const LinkMemory& memory;
  Stream& up;    // host to device
  Stream& down;  // device to host
  int32_t repeats = 0;
  size_t copy_run_bytes = 0;  // what an engine would choose
};

// Copies of 4 KiB to 16 MiB, enqueued back to back on one stream, spread over the memory.
void measure_sizes(const TransferBench& bench, std::vector<Transfer>* results);

// Rows that are far apart on the host and side by side on the device, as one block of every layer
// is: in strided copies, row by row, and, for comparison, where they are contiguous on both sides.
void measure_rows(const TransferBench& bench, std::vector<Transfer>* results);

// Pages that a list on the device names, half of all that there are, drawn for each KV head.
void measure_gathers(const TransferBench& bench, std::vector<Transfer>* results);

// Scattered runs by copies and by a kernel (run_lengths.h).
void measure_runs(const TransferBench& bench, std::vector<Transfer>* results);

// Blocks through ring, stage and tails; scattered ones in both ways.
void measure_engine(const TransferBench& bench, std::vector<Transfer>* results);

}  // namespace sluice::cli
