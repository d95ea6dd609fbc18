#include "text/observations_json.h"

#include <vector>

#include "io/json_type.h"

namespace sluice {
namespace {

// null where there is no such number.
nlohmann::ordered_json density_json(const std::optional<double>& density) {
  return density ? nlohmann::ordered_json(*density) : nlohmann::ordered_json(nullptr);
}

// [least, most], or null with too few rows.
nlohmann::ordered_json range_json(const MassObservations& mass) {
  const std::optional<MassRange> range = range_of(mass);
  if (!range) return nullptr;
  return nlohmann::ordered_json::array({range->least, range->most});
}

// Without the heads. Null is what the rows cannot say.
nlohmann::ordered_json mass_json(const MassObservations& mass) {
  return {{"rows", mass.num_rows},
          {"rows_skipped", mass.num_skipped},
          {"captured", density_json(mass.captured)},
          {"standard_error", density_json(mass.standard_error)},
          {"range_95", range_json(mass)}};
}

nlohmann::ordered_json layers_json(const std::vector<MassObservations>& layers) {
  nlohmann::ordered_json result = nlohmann::ordered_json::array();
  for (const MassObservations& mass : layers) {
    result.push_back(mass_json(mass));
    result.back()["heads"] = mass.of_heads;
  }
  return result;
}

nlohmann::ordered_json phase_json(const PhaseObservations& phase) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const LayerObservations& layer : phase.layers) {
    layers.push_back({{"h2d_bytes", layer.h2d_bytes},
                      {"d2h_bytes", layer.d2h_bytes},
                      {"density_selected", density_json(layer.density_selected)},
                      {"density_transferred", density_json(layer.density_transferred)},
                      {"hot_hits", layer.hot_pages.num_hits},
                      {"hot_misses", layer.hot_pages.num_misses},
                      {"hot_evictions", layer.hot_pages.num_evictions}});
  }
  return {{"steps", phase.num_steps},
          {"tokens", phase.num_tokens},
          {"loads", phase.num_loads},
          {"slot_waits", phase.num_slot_waits},
          {"copies", phase.num_copies},
          {"layers", layers},
          {"key_bytes", phase.key_bytes},
          {"sequence_steps", phase.num_sequence_steps},
          {"fallbacks", phase.num_fallbacks},
          {"full_rows", phase.num_full_rows},
          {"density_selected", density_json(phase.density_selected)},
          {"tiles_set", phase.num_tiles_set},
          {"tiles_visible", phase.num_tiles_visible},
          {"tiles_cut", phase.num_tiles_cut}};
}

// null without a store.
nlohmann::ordered_json store_json(const std::optional<KvStoreObservations>& store) {
  if (!store) return nullptr;
  return {
      {"stored_tokens", store->num_stored_tokens},   {"read_bytes", store->read_bytes},
      {"written_bytes", store->written_bytes},       {"blocks_written", store->num_blocks_written},
      {"blocks_skipped", store->num_blocks_skipped}, {"bad_files", store->num_bad_files}};
}

// null if experts are on the device.
nlohmann::ordered_json experts_json(const std::optional<ExpertObservations>& experts) {
  if (!experts) return nullptr;
  return {{"hits", experts->num_hits},
          {"misses", experts->num_misses},
          {"fetched_bytes", experts->fetched_bytes},
          {"streamed_bytes", experts->streamed_bytes}};
}

}  // namespace

double tokens_per_verify(const SpeculationCounts& counts) {
  if (counts.num_drafts == 0) return 0;
  return 1 +
         static_cast<double>(counts.num_accepted_tokens) / static_cast<double>(counts.num_drafts);
}

nlohmann::ordered_json speculation_json(const SpeculationCounts& counts) {
  return {{"drafts", counts.num_drafts},
          {"draft_tokens", counts.num_draft_tokens},
          {"accepted_tokens", counts.num_accepted_tokens},
          {"tokens_per_verify", tokens_per_verify(counts)}};
}

nlohmann::ordered_json observations_json(const Observations& observations) {
  return {{"kv_offload", observations.kv_offload},
          {"sparse_policy", observations.sparse_policy},
          {"device_peak_bytes", observations.device_peak_bytes},
          {"pinned_peak_bytes", observations.pinned_peak_bytes},
          {"prefill", phase_json(observations.prefill)},
          {"decode", phase_json(observations.decode)},
          {"draft", phase_json(observations.draft)},
          {"speculation", speculation_json(observations.speculation)},
          {"captured_mass", layers_json(observations.captured_mass)},
          {"kv_store", store_json(observations.kv_store)},
          {"experts", experts_json(observations.experts)}};
}

nlohmann::ordered_json request_mass_json(const RequestOutput& output) {
  nlohmann::ordered_json json = mass_json(mean_over_layers(output.captured_mass));
  json["layers"] = layers_json(output.captured_mass);
  return json;
}

}  // namespace sluice
