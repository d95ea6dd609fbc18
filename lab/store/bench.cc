// sluice-lab store: compares the rates of stored KV with those of plain files. Runs on the main
// thread.
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "io/json_type.h"
#include "lab/commands.h"
#include "lab/store/rates.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

// One way of moving the bytes.
struct RateRow {
  const char* name;
  const char* key;
  double PassRates::*rate;
};

constexpr std::array kRows = {
    RateRow{"write, until on the disk", "write", &PassRates::write},
    RateRow{"read, from the disk", "disk_read", &PassRates::disk_read},
    RateRow{"read, from the page cache", "cache_read", &PassRates::cache_read},
};

struct Passes {
  std::vector<PassRates> plain, store;  // in pairs
};

Spread rates_of(const std::vector<PassRates>& passes, double PassRates::*rate) {
  std::vector<double> rates;
  for (const PassRates& pass : passes) rates.push_back(pass.*rate);
  return spread_of(rates);
}

// Of each pair by itself: the rate of a shared disk changes from one pair to the next.
Spread shares_of(const Passes& passes, double PassRates::*rate) {
  std::vector<double> shares;
  for (size_t i = 0; i < passes.plain.size(); ++i) {
    shares.push_back(passes.store[i].*rate / passes.plain[i].*rate);
  }
  return spread_of(shares);
}

// The side that goes first changes with every repeat.
Passes measure(const BenchStoreCommand& command) {
  const StoreBenchFolder folder(command.dir);
  ProgressLine progress("measuring " + command.dir);
  StoreRates rates(command, folder.path());
  Passes passes;
  for (int32_t i = 0; i < command.repeats; ++i) {
    progress.update(static_cast<double>(i) / command.repeats);
    if (i % 2 == 1) passes.store.push_back(rates.store_pass());
    passes.plain.push_back(rates.plain_pass());
    if (i % 2 == 0) passes.store.push_back(rates.store_pass());
  }
  return passes;
}

// The worst of all passes: it says how far "from the disk" may be taken.
double cached_share(const Passes& passes) {
  return std::max(rates_of(passes.plain, &PassRates::cached_share).max,
                  rates_of(passes.store, &PassRates::cached_share).max);
}

nlohmann::ordered_json result_json(const BenchStoreCommand& command, const Passes& passes) {
  nlohmann::ordered_json json = {{"bench", "store"},
                                 {"dir", command.dir},
                                 {"block_bytes", command.block_bytes},
                                 {"blocks", command.num_blocks},
                                 {"readers", command.num_readers},
                                 {"repeats", command.repeats},
                                 {"cached_share", cached_share(passes)}};
  for (const RateRow& row : kRows) {
    json[row.key] = {{"plain_bytes_per_second", spread_json(rates_of(passes.plain, row.rate))},
                     {"store_bytes_per_second", spread_json(rates_of(passes.store, row.rate))},
                     {"share", spread_json(shares_of(passes, row.rate))}};
  }
  return json;
}

// Rates in GB/s with their spread; the share is that of pairs.
std::string result_text(const BenchStoreCommand& command, const Passes& passes) {
  Table table({"GB/s", "plain files", "store", "share"});
  const auto gigabytes = [](const Spread& rate) {
    return format_spread({rate.median * 1e-9, rate.min * 1e-9, rate.max * 1e-9});
  };
  for (const RateRow& row : kRows) {
    table.add({row.name, gigabytes(rates_of(passes.plain, row.rate)),
               gigabytes(rates_of(passes.store, row.rate)),
               fmt::format("{:.1f} %", 100 * shares_of(passes, row.rate).median)});
  }
  std::string text =
      fmt::format("store, {}: {} blocks of {}, {} reads in flight, {}\n\n{}", command.dir,
                  command.num_blocks, format_bytes(static_cast<double>(command.block_bytes)),
                  command.num_readers, format_repeats(command.repeats), table.to_string());
  if (const double share = cached_share(passes); share > 0.01) {
    text += fmt::format("reads from the disk: the page cache kept {:.0f} % of the bytes\n",
                        100 * share);
  }
  return text;
}

}  // namespace

// The program needs neither a model nor a device.
int bench_store(const BenchStoreCommand& command) {
  const Passes passes = measure(command);
  write_bench(command.json, result_json(command, passes), machine_name(EngineOptions()),
              result_text(command, passes));
  return kExitOk;
}

}  // namespace sluice::lab
