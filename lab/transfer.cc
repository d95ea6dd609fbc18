// sluice-lab transfer: compares the rates of KV transfers in all their shapes with one large
// copy. Runs on the main thread.
#include "lab/transfer.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "engine/plan/transfer_choice.h"
#include "io/json_type.h"
#include "lab/commands.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

// Median rate over the median of the bound; above 1 only by noise.
double share_of_bound(const Transfer& transfer, const LinkRates& link) {
  return transfer.bytes_per_second.median / (link.*transfer.bound).median;
}

// "45.10  81.4 %": GB/s and share of the bound.
std::string cell(const Transfer& transfer, const LinkRates& link) {
  return fmt::format("{:.2f} {:5.1f} %", transfer.bytes_per_second.median * 1e-9,
                     100 * share_of_bound(transfer, link));
}

constexpr size_t kTableColumns = 80;

// A table of the columns from `first` on that fit 80 columns beside the row names; at least one.
struct GroupTable {
  std::string text;
  size_t num_ways;
};

// `rows` have the cells of all ways, in the order of `header`; cell 0 is the row's name.
GroupTable table_of_ways(const std::vector<std::string>& header,
                         const std::vector<std::vector<std::string>>& rows, size_t first) {
  const auto width_of = [&](size_t column) {
    size_t width = header[column].size();
    for (const auto& row : rows) width = std::max(width, row[column].size());
    return width;
  };
  size_t width = width_of(0), end = first;
  while (end < header.size() && (end == first || width + 2 + width_of(end) <= kTableColumns)) {
    width += 2 + width_of(end++);
  }
  const auto cells_of = [&](const std::vector<std::string>& row) {
    std::vector<std::string> cells = {row[0]};
    for (size_t column = first; column < end; ++column) cells.push_back(row[column]);
    return cells;
  };
  Table table(cells_of(header));
  for (const auto& row : rows) table.add(cells_of(row));
  return {table.to_string(), end - first};
}

// All results of a group: one line per row, one column per way, split into tables of 80 columns.
std::string group_table(const std::string& group, const std::vector<Transfer>& transfers,
                        const LinkRates& link) {
  // Rows and ways in the order of their first result.
  std::vector<std::string> header = {group}, rows;
  for (const Transfer& transfer : transfers) {
    if (transfer.group != group) continue;
    const auto add_new = [](std::vector<std::string>* list, const std::string& name) {
      if (std::find(list->begin(), list->end(), name) == list->end()) list->push_back(name);
    };
    add_new(&header, transfer.way);
    add_new(&rows, transfer.row);
  }
  std::vector<std::vector<std::string>> all_cells;
  for (const std::string& row : rows) {
    // A row without a result in some way has an empty cell there.
    std::vector<std::string> cells(header.size());
    cells[0] = row;
    for (const Transfer& transfer : transfers) {
      if (transfer.group != group || transfer.row != row) continue;
      const auto column = std::find(header.begin(), header.end(), transfer.way) - header.begin();
      cells[static_cast<size_t>(column)] = cell(transfer, link);
    }
    all_cells.push_back(std::move(cells));
  }
  std::string text;
  for (size_t first = 1; first < header.size();) {
    const GroupTable table = table_of_ways(header, all_cells, first);
    text += (text.empty() ? "" : "\n") + table.text;
    first += table.num_ways;
  }
  return text;
}

// Groups in the order of measurement.
std::string all_tables(const std::vector<Transfer>& transfers, const LinkRates& link) {
  std::string text, last_group;
  for (const Transfer& transfer : transfers) {
    if (transfer.group == last_group) continue;
    last_group = transfer.group;
    text += (text.empty() ? "" : "\n") + group_table(last_group, transfers, link);
  }
  return text;
}

// The line to read first: the rates of the engine's largest blocks, measured last.
std::string summary(const std::vector<Transfer>& transfers, const LinkRates& link) {
  const auto describe = [&](std::string_view way) {
    const Transfer* found = nullptr;
    for (const Transfer& transfer : transfers) {
      if (transfer.group.starts_with(kEngineGroup) && transfer.way == way) found = &transfer;
    }
    SLUICE_CHECK(found != nullptr, "no {} through the engine", way);
    return fmt::format("{:.1f} GB/s ({:.0f} %)", found->bytes_per_second.median * 1e-9,
                       100 * share_of_bound(*found, link));
  };
  return fmt::format("engine: {} to the device, {} to the host\n", describe("load"),
                     describe("write-back"));
}

// For describe_noise: a share above 1 means a disturbed bound.
double largest_share(const std::vector<Transfer>& transfers, const LinkRates& link) {
  double largest = 0;
  for (const Transfer& transfer : transfers) {
    largest = std::max(largest, share_of_bound(transfer, link));
  }
  return largest;
}

nlohmann::ordered_json transfers_json(const std::vector<Transfer>& transfers,
                                      const LinkRates& link) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Transfer& transfer : transfers) {
    json.push_back({{"group", transfer.group},
                    {"row", transfer.row},
                    {"way", transfer.way},
                    {"unit_bytes", transfer.unit_bytes},
                    {"bytes_per_second", spread_json(transfer.bytes_per_second)},
                    {"share_of_bound", share_of_bound(transfer, link)}});
  }
  return json;
}

}  // namespace

int bench_transfer(const BenchTransferCommand& command) {
  const auto device = make_device(command.engine.device, {.num_threads = 1});
  const size_t num_bytes = command.num_bytes.value_or(link_bytes(*device));
  ProgressLine progress("taking " + format_bytes(static_cast<double>(num_bytes)));
  const LinkMemory memory(*device, num_bytes);
  progress.set_task("measuring");
  const auto up = device->make_stream({.name = "to the device"});
  const auto down = device->make_stream({.name = "to the host"});
  // The bound is measured before and after; the larger one counts.
  const LinkRates before = measure_link(memory, *up, *down, command.repeats);
  const TransferChoice choice = choose_transfers(command.engine, *device);
  const TransferBench bench{.device = *device,
                            .memory = memory,
                            .up = *up,
                            .down = *down,
                            .repeats = command.repeats,
                            .copy_run_bytes = choice.copy_run_bytes};
  std::vector<Transfer> transfers;
  double done = 0;
  for (const auto measure :
       {measure_sizes, measure_rows, measure_gathers, measure_runs, measure_engine}) {
    progress.update(done++ / 5);  // a fifth per group; their times differ, but none takes long
    measure(bench, &transfers);
  }
  const LinkRates link = larger(before, measure_link(memory, *up, *down, command.repeats));
  progress.clear();
  // The notes say which threshold between copies and kernel was used, and why.
  std::string notes;
  for (const std::string& note : choice.notes) notes += note + "\n";
  const std::string text = fmt::format(
      "{}transfer, {} of pinned memory, {}\nbound: {}\n{}GB/s (H2D: host to device) and share of "
      "the "
      "bound\n{}\n{}",
      summary(transfers, link), format_bytes(static_cast<double>(num_bytes)),
      format_repeats(command.repeats), describe_link(link),
      describe_noise(largest_share(transfers, link)), notes, all_tables(transfers, link));
  // For the machine's name: transfers use no compute threads.
  EngineOptions one_thread = command.engine;
  one_thread.num_threads = 1;
  write_bench(command.json,
              {{"bench", "transfer"},
               {"num_bytes", num_bytes},
               {"link", link_json(link)},
               {"copy_run_bytes", choice.copy_run_bytes},
               {"results", transfers_json(transfers, link)}},
              machine_name(one_thread), text);
  return kExitOk;
}

}  // namespace sluice::lab
