// sluice bench offload: what it costs that KV lives in host memory, over modes, contexts and the
// sizes of what flows. KV on the device is the reference, in the same run.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/bench/kv_run.h"
#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/table.h"
#include "cli/units.h"

namespace sluice::cli {
namespace {

// Every engine in `engines` once for each value of one of its options. An empty list leaves the
// option as it is.
template <typename T>
void vary(T EngineOptions::*option, const std::vector<T>& values,
          std::vector<EngineOptions>* engines) {
  if (values.empty()) return;
  std::vector<EngineOptions> varied;
  for (const EngineOptions& engine : *engines) {
    for (const T value : values) {
      varied.push_back(engine);
      varied.back().*option = value;
    }
  }
  *engines = std::move(varied);
}

// The engines of one mode. What does not apply to the mode is not varied.
std::vector<EngineOptions> make_engines(const BenchOffloadCommand& command,
                                        const std::string& mode) {
  std::vector<EngineOptions> engines = {command.engine};
  engines[0].kv_offload = mode;
  if (mode == "layerwise") engines[0].prefill_chunk_tokens = 0;
  vary(&EngineOptions::block_size, command.block_sizes, &engines);
  if (mode != "layerwise") vary(&EngineOptions::prefill_chunk_tokens, command.chunks, &engines);
  if (mode == "off") return engines;
  vary(&EngineOptions::num_kv_slots, command.slots, &engines);
  vary(&EngineOptions::kv_slot_blocks, command.slot_blocks, &engines);
  vary(&EngineOptions::kv_device_bytes, command.device_bytes, &engines);
  return engines;
}

std::vector<KvRow> make_rows(const BenchOffloadCommand& command) {
  std::vector<KvRow> rows;
  for (const int64_t length : command.lengths) {
    for (const std::string& mode : command.modes) {
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

// A phase's speed as a share of the fastest run of the same length with KV on the device; none
// without one.
std::optional<double> share_of_resident(const std::vector<KvRow>& rows, const KvRow& row,
                                        PhaseResult KvResult::*phase) {
  double fastest = 0;
  for (const KvRow& other : rows) {
    if (other.work.prompt_tokens != row.work.prompt_tokens) continue;
    if (other.engine.kv_offload != "off" || !other.result) continue;
    fastest = std::max(fastest, ((*other.result).*phase).tokens_per_second.median);
  }
  if (fastest == 0) return {};
  return ((*row.result).*phase).tokens_per_second.median / fastest;
}

std::string or_default(int64_t tokens) { return tokens == 0 ? "default" : format_tokens(tokens); }

// What a row was, for both tables.
std::vector<std::string> configuration_cells(const KvRow& row) {
  const EngineOptions& engine = row.engine;
  const bool flows = engine.kv_offload != "off";
  const std::string slot_blocks =
      engine.kv_slot_blocks == 0 ? "default" : fmt::format("{} blocks", engine.kv_slot_blocks);
  return {format_tokens(row.work.prompt_tokens),
          engine.kv_offload,
          engine.kv_offload == "layerwise" ? "whole" : or_default(engine.prefill_chunk_tokens),
          flows ? fmt::format("{} x {}", engine.num_kv_slots, slot_blocks) : "-",
          or_default(engine.block_size),
          flows ? format_bytes(static_cast<double>(engine.kv_device_bytes)) : "all"};
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

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

nlohmann::ordered_json row_json(const std::vector<KvRow>& rows, const KvRow& row,
                                const LinkRates& link) {
  nlohmann::ordered_json json = {{"context_tokens", row.work.prompt_tokens},
                                 {"kv_offload", row.engine.kv_offload},
                                 {"prefill_chunk_tokens", row.engine.prefill_chunk_tokens},
                                 {"num_kv_slots", row.engine.num_kv_slots},
                                 {"kv_slot_blocks", row.engine.kv_slot_blocks},
                                 {"block_size", row.engine.block_size},
                                 {"kv_device_bytes", row.engine.kv_device_bytes}};
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
  const ModelSummary model = summarize_model(command.engine.model);
  std::vector<KvRow> rows = make_rows(command);
  const LinkRates link = measure_rows_and_link(&rows, model);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const KvRow& row : rows) results.push_back(row_json(rows, row, link));
  const std::string name = model_name(command.engine.model);
  const std::string text = fmt::format(
      "offload, {}, {} of KV per token, {} tokens generated, {}\nbound of what moves: {}\n"
      "\n{}\n{}",
      name, format_bytes(static_cast<double>(model.kv_bytes_per_token)), command.decode_tokens,
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
