// sluice bench transfer: how near to one large copy KV comes in the shapes in which it moves.
#include "cli/bench/transfer.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "engine/transfer_choice.h"

namespace sluice::cli {
namespace {

double share_of_bound(const Transfer& transfer, const LinkRates& link) {
  return transfer.bytes_per_second.median / (link.*transfer.bound).median;
}

std::string cell(const Transfer& transfer, const LinkRates& link) {
  return fmt::format("{:.2f} {:5.1f} %", transfer.bytes_per_second.median * 1e-9,
                     100 * share_of_bound(transfer, link));
}

// A table for each group: its rows down, its ways across.
std::string group_table(const std::string& group, const std::vector<Transfer>& transfers,
                        const LinkRates& link) {
  std::vector<std::string> header = {group}, rows;
  for (const Transfer& transfer : transfers) {
    if (transfer.group != group) continue;
    const auto add_new = [](std::vector<std::string>* list, const std::string& name) {
      if (std::find(list->begin(), list->end(), name) == list->end()) list->push_back(name);
    };
    add_new(&header, transfer.way);
    add_new(&rows, transfer.row);
  }
  Table table(header);
  for (const std::string& row : rows) {
    std::vector<std::string> cells(header.size());
    cells[0] = row;
    for (const Transfer& transfer : transfers) {
      if (transfer.group != group || transfer.row != row) continue;
      const auto column = std::find(header.begin(), header.end(), transfer.way) - header.begin();
      cells[static_cast<size_t>(column)] = cell(transfer, link);
    }
    table.add(cells);
  }
  return table.to_string();
}

std::string all_tables(const std::vector<Transfer>& transfers, const LinkRates& link) {
  std::string text, last_group;
  for (const Transfer& transfer : transfers) {
    if (transfer.group == last_group) continue;
    last_group = transfer.group;
    text += (text.empty() ? "" : "\n") + group_table(last_group, transfers, link);
  }
  return text;
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
  const size_t num_bytes = command.num_bytes != 0 ? command.num_bytes : link_bytes(*device);
  const LinkMemory memory(*device, num_bytes);
  const auto up = device->make_stream({.name = "to the device"});
  const auto down = device->make_stream({.name = "to the host"});
  const LinkRates before = measure_link(memory, *up, *down, command.repeats);
  const TransferChoice choice = choose_transfers(command.engine, *device);
  const TransferBench bench{.device = *device,
                            .memory = memory,
                            .up = *up,
                            .down = *down,
                            .repeats = command.repeats,
                            .copy_run_bytes = choice.copy_run_bytes};
  std::vector<Transfer> transfers;
  ProgressLine progress("measuring");
  double done = 0;
  for (const auto measure :
       {measure_sizes, measure_rows, measure_gathers, measure_runs, measure_engine}) {
    progress.update(done++ / 5);
    measure(bench, &transfers);
  }
  progress.clear();
  const LinkRates link = larger(before, measure_link(memory, *up, *down, command.repeats));
  std::string notes;
  for (const std::string& note : choice.notes) notes += note + "\n";
  const std::string text = fmt::format(
      "transfer, {} of pinned memory, {} repeats\nbound: {}\nGB/s (H2D: host to device) and share "
      "of the "
      "bound\n{}\n{}",
      format_bytes(static_cast<double>(num_bytes)), command.repeats, describe_link(link), notes,
      all_tables(transfers, link));
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

}  // namespace sluice::cli
