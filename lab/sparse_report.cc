// Cells and objects of sluice-lab sparse.
#include "lab/sparse_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/options/named_policies.h"
#include "cli/table.h"
#include "cli/units.h"
#include "io/json_type.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using nlohmann::ordered_json;

double link_bytes_of(const PhaseResult& phase) { return phase.h2d_bytes + phase.d2h_bytes; }

// The cells that name a row, the same in both tables.
std::vector<std::string> name_cells(const KvRow& row) {
  return {format_tokens(row.work.prompt_tokens), kv_offload_name(row.engine.kv.offload),
          row.policy};
}

Table table_of(const std::vector<std::string>& columns) {
  Table table(joined({"context", "KV", "policy"}, columns));
  table.align_left(1);
  table.align_left(2);
  return table;
}

// "91.3 % (84.0 %)": the mean, and the layer that lost most.
std::string captured_cell(const std::optional<CapturedMass>& captured) {
  if (!captured) return "-";
  return fmt::format("{:.1f} % ({:.1f} %)", 100 * captured->mean, 100 * captured->lowest_layer);
}

std::string prefill_table(const std::vector<KvRow>& rows, const LinkRates& link) {
  // A column that is empty in every row is left out.
  const bool is_audited = std::any_of(rows.begin(), rows.end(), [](const KvRow& row) {
    return row.result && row.result->captured;
  });
  std::vector<std::string> columns = {"prefill tok/s", "of full", "visited"};
  if (is_audited) columns.emplace_back("captured (worst layer)");
  Table table = table_of(
      joined(columns, {"H2D", "D2H", "bytes of full", "link GB/s, share", "device peak, of plan"}));
  for (const KvRow& row : rows) {
    if (!row.result) continue;
    const PhaseResult& phase = row.result->prefill;
    const PhaseRatios ratios = ratios_to_full(rows, row, &KvResult::prefill);
    std::vector<std::string> cells =
        joined(name_cells(row), {rate_cell(phase.tokens_per_second), ratio_cell(ratios.speed),
                                 percent_or_dash(phase.density_selected)});
    if (is_audited) cells.push_back(captured_cell(row.result->captured));
    table.add(
        joined(cells, {format_bytes(phase.h2d_bytes), format_bytes(phase.d2h_bytes),
                       percent_or_dash(ratios.bytes), link_cell(phase, link), peak_cell(row)}));
  }
  return table.to_string();
}

std::string decode_table(const std::vector<KvRow>& rows, const LinkRates& link) {
  Table table = table_of({"decode tok/s", "of full", "selected", "H2D per token", "bytes of full",
                          "link GB/s, share"});
  for (const KvRow& row : rows) {
    if (!row.result) continue;
    const PhaseResult& phase = row.result->decode;
    const PhaseRatios ratios = ratios_to_full(rows, row, &KvResult::decode);
    table.add(joined(name_cells(row), {rate_cell(phase.tokens_per_second), ratio_cell(ratios.speed),
                                       percent_or_dash(phase.density_selected),
                                       format_bytes(phase.h2d_bytes / phase.num_tokens),
                                       percent_or_dash(ratios.bytes), link_cell(phase, link)}));
  }
  return table.to_string();
}

ordered_json captured_json(const std::optional<CapturedMass>& captured) {
  if (!captured) return nullptr;
  return {{"mean", captured->mean},
          {"lowest_layer", captured->lowest_layer},
          {"rows", captured->num_rows}};
}

ordered_json sparse_row_json(const std::vector<KvRow>& rows, const KvRow& row,
                             const LinkRates& link) {
  const SparseOptions& sparse = row.engine.sparse;
  ordered_json json = {{"context_tokens", row.work.prompt_tokens},
                       {"kv_offload", kv_offload_name(row.engine.kv.offload)},
                       {"name", row.policy},
                       {"policy", sparse.policy},
                       {"options", describe_sparse_options(sparse)},
                       {"replayed", row.own_policies != nullptr}};
  if (!row.result) {
    json["does_not_fit"] = row.does_not_fit;
    return json;
  }
  const auto phase_of = [&](PhaseResult KvResult::*which) {
    const PhaseResult& phase = (*row.result).*which;
    const PhaseRatios ratios = ratios_to_full(rows, row, which);
    ordered_json result = phase_json(phase, link);
    result["density_selected"] = number_or_null(phase.density_selected);
    result["speed_of_full"] = number_or_null(ratios.speed);
    result["bytes_of_full"] = number_or_null(ratios.bytes);
    return result;
  };
  json["prefill"] = phase_of(&KvResult::prefill);
  json["prefill"]["captured_mass"] = captured_json(row.result->captured);
  json["decode"] = phase_of(&KvResult::decode);
  json["planned_device_bytes"] = row.planned_device_bytes;
  json["device_peak_bytes"] = row.result->device_peak_bytes;
  json["pinned_peak_bytes"] = row.result->pinned_peak_bytes;
  return json;
}

}  // namespace

PhaseRatios ratios_to_full(const std::vector<KvRow>& rows, const KvRow& row,
                           PhaseResult KvResult::*phase) {
  const auto full = std::find_if(rows.begin(), rows.end(), [&](const KvRow& other) {
    return other.result && other.engine.sparse.policy == "full" &&
           other.work.prompt_tokens == row.work.prompt_tokens &&
           other.engine.kv.offload == row.engine.kv.offload;
  });
  if (full == rows.end()) return {};
  const PhaseResult& ours = (*row.result).*phase;
  const PhaseResult& theirs = (*full->result).*phase;
  PhaseRatios ratios;
  ratios.speed = ours.tokens_per_second.median / theirs.tokens_per_second.median;
  if (link_bytes_of(theirs) > 0) ratios.bytes = link_bytes_of(ours) / link_bytes_of(theirs);
  return ratios;
}

std::string sparse_tables(const std::vector<KvRow>& rows, const LinkRates& link) {
  return prefill_table(rows, link) + "\n" + decode_table(rows, link);
}

ordered_json sparse_json(const std::vector<KvRow>& rows, const LinkRates& link) {
  ordered_json results = ordered_json::array();
  for (const KvRow& row : rows) results.push_back(sparse_row_json(rows, row, link));
  return results;
}

}  // namespace sluice::lab
