// sluice bench offload: measures the cost of KV in host memory, over modes, contexts and transfer
// sizes. KV on the device, in the same run, is the reference. Runs on the main thread.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/kv_run.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/table.h"
#include "cli/units.h"
#include "io/json_type.h"

namespace sluice::cli {
namespace {

// Replaces each engine by one engine per value of an option, which `set` sets. A value of 0 unsets
// the option, as on the command line. An empty list changes nothing.
template <typename T, typename Set>
void vary(const std::vector<T>& values, std::vector<EngineOptions>* engines, Set set) {
  if (values.empty()) return;
  std::vector<EngineOptions> varied;
  for (const EngineOptions& engine : *engines) {
    for (const T value : values) {
      varied.push_back(engine);
      set(varied.back(), value);
    }
  }
  *engines = std::move(varied);
}

// 0 stands for an unset option.
std::optional<int32_t> unless_zero(int32_t value) {
  return value == 0 ? std::nullopt : std::optional(value);
}

// All combinations of the lists for one mode. Options that the mode does not have are not varied.
std::vector<EngineOptions> make_engines(const BenchOffloadCommand& command, KvOffload mode) {
  std::vector<EngineOptions> engines = {command.engine};
  set_mode(mode, &engines[0]);
  vary(command.block_sizes, &engines,
       [](EngineOptions& engine, int32_t n) { engine.kv.block_size = unless_zero(n); });
  if (mode != KvOffload::kLayerwise) {
    vary(command.chunks, &engines,
         [](EngineOptions& engine, int32_t n) { engine.prefill_chunk_tokens = unless_zero(n); });
  }
  if (mode == KvOffload::kOff) return engines;
  vary(command.slots, &engines, [](EngineOptions& engine, int32_t n) { engine.kv.num_slots = n; });
  vary(command.slot_blocks, &engines,
       [](EngineOptions& engine, int32_t n) { engine.kv.slot_blocks = unless_zero(n); });
  vary(command.device_bytes, &engines,
       [](EngineOptions& engine, size_t n) { engine.kv.device_bytes = n; });
  return engines;
}

// Rows in the order of the tables: by length, then mode, then sizes.
std::vector<KvRow> make_rows(const BenchOffloadCommand& command) {
  std::vector<KvRow> rows;
  for (const int64_t length : command.lengths) {
    for (const KvOffload mode : command.modes) {
      for (const EngineOptions& engine : make_engines(command, mode)) {
        rows.push_back({.engine = engine,
                        .work = {.prompt_tokens = length,
                                 .decode_tokens = command.decode_tokens,
                                 .repeats = command.repeats},
                        .result = {},
                        .planned_device_bytes = 0,
                        .does_not_fit = {}});
      }
    }
  }
  return rows;
}

// Speed of a phase over that of the fastest row of the same length with KV on the device; empty if
// there is no such row.
std::optional<double> share_of_resident(const std::vector<KvRow>& rows, const KvRow& row,
                                        PhaseResult KvResult::*phase) {
  double fastest = 0;
  for (const KvRow& other : rows) {
    if (other.work.prompt_tokens != row.work.prompt_tokens) continue;
    if (other.engine.kv.offload != KvOffload::kOff || !other.result) continue;
    fastest = std::max(fastest, ((*other.result).*phase).tokens_per_second.median);
  }
  if (fastest == 0) return {};
  return ((*row.result).*phase).tokens_per_second.median / fastest;
}

// A count of tokens as text.
std::string or_default(std::optional<int32_t> tokens) {
  return tokens ? format_tokens(*tokens) : "default";
}

// The columns that describe a row, the same in both tables.
std::vector<std::string> configuration_cells(const KvRow& row) {
  const EngineOptions& engine = row.engine;
  const bool flows = engine.kv.offload != KvOffload::kOff;
  const std::string slot_blocks =
      engine.kv.slot_blocks ? fmt::format("{} blocks", *engine.kv.slot_blocks) : "default";
  return {format_tokens(row.work.prompt_tokens),
          kv_offload_name(engine.kv.offload),
          engine.kv.offload == KvOffload::kLayerwise ? "whole"
                                                     : or_default(engine.prefill_chunk_tokens),
          flows ? fmt::format("{} x {}", or_default(engine.kv.num_slots), slot_blocks) : "-",
          or_default(engine.kv.block_size),
          flows ? format_bytes(static_cast<double>(engine.kv.device_bytes.value_or(0))) : "all"};
}

// A table for prefill and one for decode.
std::string tables(const std::vector<KvRow>& rows, const LinkRates& link) {
  const std::vector<std::string> configuration = {"context", "KV",    "chunk",
                                                  "slots",   "block", "stays"};
  Table prefill(joined(configuration, {"prefill tok/s", "of resident", "H2D", "D2H",
                                       "link GB/s, share", "device peak, of plan"}));
  Table decode(
      joined(configuration, {"decode tok/s", "of resident", "H2D per token", "link GB/s, share"}));
  prefill.align_left(1);
  decode.align_left(1);
  for (const KvRow& row : rows) {
    if (!row.result) continue;
    const KvResult& result = *row.result;
    const PhaseResult& in = result.prefill;
    const PhaseResult& out = result.decode;
    prefill.add(joined(configuration_cells(row),
                       {rate_cell(in.tokens_per_second),
                        percent_or_dash(share_of_resident(rows, row, &KvResult::prefill)),
                        format_bytes(in.h2d_bytes), format_bytes(in.d2h_bytes), link_cell(in, link),
                        peak_cell(row)}));
    decode.add(joined(configuration_cells(row),
                      {rate_cell(out.tokens_per_second),
                       percent_or_dash(share_of_resident(rows, row, &KvResult::decode)),
                       format_bytes(out.h2d_bytes / out.num_tokens), link_cell(out, link)}));
  }
  return prefill.to_string() + "\n" + decode.to_string();
}

// The option's value; null if the engine chose it.
template <typename T>
nlohmann::ordered_json given_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// The row's options; then its results, or why it has none.
nlohmann::ordered_json row_json(const std::vector<KvRow>& rows, const KvRow& row,
                                const LinkRates& link) {
  nlohmann::ordered_json json = {
      {"context_tokens", row.work.prompt_tokens},
      {"kv_offload", kv_offload_name(row.engine.kv.offload)},
      {"prefill_chunk_tokens", given_or_null(row.engine.prefill_chunk_tokens)},
      {"num_kv_slots", given_or_null(row.engine.kv.num_slots)},
      {"kv_slot_blocks", given_or_null(row.engine.kv.slot_blocks)},
      {"block_size", given_or_null(row.engine.kv.block_size)},
      {"kv_device_bytes", given_or_null(row.engine.kv.device_bytes)}};
  if (!row.result) {
    json["does_not_fit"] = row.does_not_fit;
    return json;
  }
  const auto phase = [&](PhaseResult KvResult::*which) {
    nlohmann::ordered_json of_phase = phase_json((*row.result).*which, link);
    of_phase["share_of_resident"] = number_or_null(share_of_resident(rows, row, which));
    return of_phase;
  };
  json["prefill"] = phase(&KvResult::prefill);
  json["decode"] = phase(&KvResult::decode);
  json["planned_device_bytes"] = row.planned_device_bytes;
  json["device_peak_bytes"] = row.result->device_peak_bytes;
  json["pinned_peak_bytes"] = row.result->pinned_peak_bytes;
  return json;
}

}  // namespace

int bench_offload(const BenchOffloadCommand& command) {
  // Everything is measured before a line is printed: shares need the reference rows.
  const ModelSummary model = summarize_model(command.engine.model, command.engine.kv.cache_dtype);
  std::vector<KvRow> rows = make_rows(command);
  const LinkRates link = measure_rows_and_link(&rows, model);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const KvRow& row : rows) results.push_back(row_json(rows, row, link));
  const std::string name = model_name(command.engine.model);
  const std::string text = fmt::format(
      "offload, {}{}, {} of KV per token, {} tokens generated, {}\nbound of what moves: {}\n"
      "\n{}\n{}",
      name, describe_weights(command.engine),
      format_bytes(static_cast<double>(model.kv_bytes_per_token)), command.decode_tokens,
      describe_repeats(command.repeats), describe_link(link), tables(rows, link),
      unfit_rows_text(rows));
  write_bench(command.json,
              {{"bench", "offload"},
               {"model", name},
               {"kv_bytes_per_token", model.kv_bytes_per_token},
               {"decode_tokens", command.decode_tokens},
               {"repeats", command.repeats},
               {"link", link_json(link)},
               {"results", results}},
              machine_name(command.engine), text);
  return exit_code_for(rows);
}

}  // namespace sluice::cli
