// The measurements of `sluice-lab transfer`: the shapes in which KV crosses the link.
//
// transfer.cc is the command; transfer_copies.cc measures plain copies and gathers, run_lengths.cc
// scattered runs, transfer_kv.cc the same bytes through the OffloadEngine. Thread rule: main
// thread, with no other load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/link.h"

namespace sluice::lab {

// Prefix of the name of measure_engine's group; the summary line searches for it.
inline constexpr const char* kEngineGroup = "through the offload engine";

// One measured shape: a cell of a table.
struct Transfer {
  std::string group;      // "copies back to back"
  std::string row;        // row of the group's table: "64.0 KiB"
  std::string way;        // column of that table: "H2D strided"
  size_t unit_bytes = 0;  // bytes of the copy, row, run or block that the row is about
  cli::Spread bytes_per_second;
  cli::Spread cli::LinkRates::*bound =
      nullptr;  // one large copy in the same direction, or both at once
};

// Copies of 4 KiB to 16 MiB, enqueued back to back on one stream, spread over the memory.
void measure_sizes(const cli::TransferBench& bench, std::vector<Transfer>* results);

// Rows that are far apart on the host and contiguous on the device, like one block of every layer:
// by strided copies, by one copy per row and, for comparison, contiguous on both sides.
void measure_rows(const cli::TransferBench& bench, std::vector<Transfer>* results);

// Pages named by a list on the device, half of all pages, drawn at random for each KV head.
void measure_gathers(const cli::TransferBench& bench, std::vector<Transfer>* results);

// Scattered runs by copies and by a kernel (run_lengths.h).
void measure_runs(const cli::TransferBench& bench, std::vector<Transfer>* results);

// Blocks through ring, stage and tails of an OffloadEngine; scattered ones by copies and by the
// kernel.
void measure_engine(const cli::TransferBench& bench, std::vector<Transfer>* results);

}  // namespace sluice::lab
