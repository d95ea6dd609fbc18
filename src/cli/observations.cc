// Table of the engine's transfer and selection counts.
#include "cli/observations.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "cli/table.h"
#include "cli/units.h"
#include "text/observations_json.h"

namespace sluice::cli {
namespace {

std::string bytes(int64_t num_bytes) { return format_bytes(static_cast<double>(num_bytes)); }

// "-" where only the device knows the density.
std::string density_text(const std::optional<double>& density) {
  return density ? format_percent(*density) : "-";
}

// The cells of one layer's row, without its number.
std::vector<std::string> layer_cells(const LayerObservations& layer) {
  return {bytes(layer.h2d_bytes), bytes(layer.d2h_bytes), density_text(layer.density_selected),
          density_text(layer.density_transferred)};
}

// The density of a phase whose policy selects, for how many tokens its rule takes everything, and
// what a budget cut off; else empty.
std::string selection_line(const char* name, const PhaseObservations& phase) {
  if (phase.num_sequence_steps == 0) return {};
  std::string text = fmt::format("{} attention read {} of what was before each query", name,
                                 density_text(phase.density_selected));
  if (phase.num_full_rows > 0) {
    text += fmt::format("; all of it for {} of {} tokens", phase.num_full_rows, phase.num_tokens);
  }
  if (phase.num_tiles_cut > 0) {
    text += fmt::format("; sparse_max_budget_tokens cut off {} tiles that the policy chose",
                        phase.num_tiles_cut);
  }
  return text + "\n";
}

// How often listed pages were hot, and the worst layer, for which a step waits longest; empty
// without hot pages.
std::string hot_page_line(const PhaseObservations& phase) {
  HotPageObservations total;
  size_t worst = 0;
  for (size_t layer = 0; layer < phase.layers.size(); ++layer) {
    const HotPageObservations& hot = phase.layers[layer].hot_pages;
    total.num_hits += hot.num_hits;
    total.num_misses += hot.num_misses;
    total.num_evictions += hot.num_evictions;
    if (hot.num_misses > phase.layers[worst].hot_pages.num_misses) worst = layer;
  }
  if (total.num_hits + total.num_misses == 0) return {};
  const auto share = [](const HotPageObservations& hot) {
    return 100 * static_cast<double>(hot.num_hits) /
           static_cast<double>(hot.num_hits + hot.num_misses);
  };
  return fmt::format(
      "hot pages: {} of {} listed pages ({:.1f} %), {} evicted; least in layer {}, "
      "{:.1f} %\n",
      total.num_hits, total.num_hits + total.num_misses, share(total), total.num_evictions, worst,
      share(phase.layers[worst].hot_pages));
}

// The totals of a phase and its table by layer; empty if the phase had no step. Consecutive layers
// with equal cells share a row.
std::string phase_table(const char* name, const PhaseObservations& phase) {
  if (phase.layers.empty() || phase.num_steps == 0) return {};
  std::string text = fmt::format(
      "{}: {} tokens in {} steps, {} loads ({} waited for a slot), {} copies\n", name,
      phase.num_tokens, phase.num_steps, phase.num_loads, phase.num_slot_waits, phase.num_copies);
  Table table({"layer", "to the device", "to the host", "selected", "transferred"});
  LayerObservations total;
  // [first, end) is a run of layers with equal cells.
  for (size_t first = 0; first < phase.layers.size();) {
    std::vector<std::string> cells = layer_cells(phase.layers[first]);
    size_t end = first;
    for (; end < phase.layers.size() && layer_cells(phase.layers[end]) == cells; ++end) {
      total.h2d_bytes += phase.layers[end].h2d_bytes;
      total.d2h_bytes += phase.layers[end].d2h_bytes;
    }
    cells.insert(cells.begin(), end - first == 1 ? fmt::format("{}", first)
                                                 : fmt::format("{} to {}, each", first, end - 1));
    table.add(cells);
    first = end;
  }
  table.add({"all", bytes(total.h2d_bytes), bytes(total.d2h_bytes), "", ""});
  text += table.to_string();
  if (phase.key_bytes > 0) {
    text += fmt::format("of these, {} were keys to select tiles with\n", bytes(phase.key_bytes));
  }
  return text;
}

// "70.1 to 81.9 %".
std::string range_text(const MassRange& range) {
  return fmt::format("{:.1f} to {}", 100 * range.least, format_percent(range.most));
}

// What the audit measured, by layer; empty without it. Few rows have no range.
std::string mass_table(const std::vector<MassObservations>& layers) {
  if (layers.empty()) return {};
  Table table({"layer", "rows", "captured", "95 % range", "lowest head"});
  int64_t num_skipped = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const MassObservations& mass = layers[layer];
    num_skipped += mass.num_skipped;
    std::vector<std::string> cells = {fmt::format("{}", layer), fmt::format("{}", mass.num_rows),
                                      density_text(mass.captured), "-", "-"};
    if (mass.captured) {
      if (const auto range = range_of(mass)) cells[3] = range_text(*range);
      cells[4] = density_text(*std::min_element(mass.of_heads.begin(), mass.of_heads.end()));
    }
    table.add(cells);
  }
  std::string text = "attention that sparse prefill captured, measured in one row of 1024:\n";
  text += table.to_string();
  if (num_skipped > 0) {
    text += fmt::format("{} rows had a score that is not finite and do not count\n", num_skipped);
  }
  return text;
}

// Where the experts of rows came from; empty if they are on the device.
std::string expert_line(const std::optional<ExpertObservations>& experts) {
  if (!experts) return {};
  std::string text =
      fmt::format("experts: {} streamed in whole layers", bytes(experts->streamed_bytes));
  const int64_t num_chosen = experts->num_hits + experts->num_misses;
  if (num_chosen == 0) return text + "\n";
  return text +
         fmt::format("; {} of {} chosen ones were on the device ({:.1f} %), {} fetched\n",
                     experts->num_hits, num_chosen,
                     100 * static_cast<double>(experts->num_hits) / static_cast<double>(num_chosen),
                     bytes(experts->fetched_bytes));
}

}  // namespace

std::string speculation_line(const SpeculationCounts& counts) {
  if (counts.num_drafts == 0) return {};
  return fmt::format(
      "drafts: {} of {} tokens accepted ({}), {:.2f} tokens for each of {} verify passes",
      counts.num_accepted_tokens, counts.num_draft_tokens,
      density_text(static_cast<double>(counts.num_accepted_tokens) /
                   static_cast<double>(counts.num_draft_tokens)),
      tokens_per_verify(counts), counts.num_drafts);
}

std::string observations_table(const Observations& observations) {
  std::string text =
      fmt::format("KV offload: {}; at most {} on the device, {} pinned\n", observations.kv_offload,
                  format_bytes(static_cast<double>(observations.device_peak_bytes)),
                  format_bytes(static_cast<double>(observations.pinned_peak_bytes)));
  text += phase_table("prefill", observations.prefill);
  text += phase_table("decode", observations.decode);
  text += phase_table("draft", observations.draft);
  text += selection_line("prefill", observations.prefill);
  text += selection_line("decode", observations.decode);
  text += selection_line("draft", observations.draft);
  // With drafts, these alone read hot pages.
  text += hot_page_line(observations.decode) + hot_page_line(observations.draft);
  text += expert_line(observations.experts);
  text += mass_table(observations.captured_mass);
  const std::string drafts = speculation_line(observations.speculation);
  if (!drafts.empty()) text += "all requests: " + drafts + "\n";
  text.pop_back();  // the last newline is the terminal's
  return text;
}

std::string request_mass_line(const RequestOutput& output) {
  const MassObservations mass = mean_over_layers(output.captured_mass);
  if (!mass.captured) return {};
  std::string text =
      fmt::format("captured {} of attention, measured in {} {}", density_text(mass.captured),
                  mass.num_rows, mass.num_rows == 1 ? "row" : "rows");
  const std::optional<MassRange> range = range_of(mass);
  text += range ? fmt::format(" (95 % range {})", range_text(*range)) : ", too few for a range";
  const auto is_less = [](const MassObservations& a, const MassObservations& b) {
    return a.captured.value_or(1) < b.captured.value_or(1);
  };
  const auto least = std::ranges::min_element(output.captured_mass, is_less);
  return text + fmt::format("; least {} in layer {}", density_text(least->captured),
                            least - output.captured_mass.begin());
}

}  // namespace sluice::cli
