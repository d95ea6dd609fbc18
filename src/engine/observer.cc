// Turns running totals of the residency into counts per phase.
#include "engine/observer.h"

#include <algorithm>
#include <numeric>

#include "attention/tile_scorer.h"
#include "ops/attention/attention.h"

namespace sluice {

Observer::Observer(const Residency& residency, const PolicyPair& policies,
                   const KvBlockShape& block)
    : residency_(residency), policies_(policies), rules_(policies.rules(block)) {
  // Sizes the vectors once, so that a step allocates nothing.
  residency_.read_counters(before_);
  for (PhaseCounts* phase : {&prefill_, &decode_, &draft_}) {
    phase->moved.loaded_bytes.resize(before_.loaded_bytes.size());
    phase->moved.written_bytes.resize(before_.written_bytes.size());
    phase->moved.hot_pages.resize(before_.hot_pages.size());
  }
}

void Observer::begin_step(const Batch& batch) {
  PhaseCounts& phase = counts_of(batch);
  verifies_ = verifies_ || batch.kind.is_verify;
  ++phase.num_steps;
  phase.num_tokens += batch.num_rows();
  if (const SelectionRule& rule = rules_.of(batch.kind); rule.selects()) {
    for (const ScheduledSequence& scheduled : batch.sequences) {
      count_selected(scheduled, rule, phase);
    }
  }
  // Read before the pass, whose KV is not committed: the history is what it was.
  residency_.read_counters(before_);
  for (const ScheduledSequence& scheduled : batch.sequences) {
    phase.history_bytes += residency_.flowing_bytes(scheduled.sequence->kv.view());
  }
}

// Adds up, over the rows of one sequence, the tokens that the policy selects and those it could
// select. Evaluates the policy's rule per row; the device's lists are never read.
void Observer::count_selected(const ScheduledSequence& scheduled, const SelectionRule& rule,
                              PhaseCounts& counts) {
  const int64_t first_pos = scheduled.first_pos();
  std::optional<int64_t> selected;
  for (int64_t pos = first_pos; pos < first_pos + scheduled.num_rows; ++pos) {
    selected = rule.num_selected_tokens(pos);
    counts.selected_is_known = counts.selected_is_known && selected;
    counts.num_selected_tokens += selected.value_or(0);
    counts.num_full_rows += selected == pos + 1 ? 1 : 0;
    counts.num_visible_tokens += pos + 1;
  }
  // A fallback is a sequence whose last row attends to everything. Later rows attend to at most the
  // same share, so the last row decides.
  ++counts.num_sequence_steps;
  counts.num_fallbacks += selected == first_pos + scheduled.num_rows ? 1 : 0;
  if (rule.form == SelectionForm::kTileMasks) {
    counts.num_visible_tiles += count_tiles(scheduled, rule);
  }
}

// KV tiles that the query tiles of the rows see: i + 1 for query tile i, in each of its masks.
int64_t Observer::count_tiles(const ScheduledSequence& scheduled, const SelectionRule& rule) const {
  const int64_t first_pos = scheduled.sequence->kv.num_tokens();
  const int64_t first = first_pos / kMaskTileTokens;
  const int64_t end = mask_tiles_of(first_pos + scheduled.num_rows);
  return rule.num_masks * (end * (end + 1) - first * (first + 1)) / 2;
}

void Observer::count_mass(Sequence& sequence, int64_t index) {
  const MassAudit* audit = policies_.audit();
  if (audit == nullptr || sequence.num_generated() > 0) return;
  for (MassSums* sums : {&sequence.audit.mass, &mass_}) {
    sums->add(audit->tallies(index), audit->num_layers());
  }
  sequence.audit.num_measured_tokens =
      std::max(sequence.audit.num_measured_tokens, sequence.kv.num_tokens());
}

// A load beyond the number of slots reuses a slot within the step, and so waits for its drain.
void Observer::end_step(const Batch& batch) {
  PhaseCounts& phase = counts_of(batch);
  residency_.read_counters(now_);
  for (size_t layer = 0; layer < now_.loaded_bytes.size(); ++layer) {
    phase.moved.loaded_bytes[layer] += now_.loaded_bytes[layer] - before_.loaded_bytes[layer];
    phase.moved.written_bytes[layer] += now_.written_bytes[layer] - before_.written_bytes[layer];
  }
  for (size_t layer = 0; layer < now_.hot_pages.size(); ++layer) {
    const auto add = [&](int64_t TransferCounters::HotPages::*count) {
      phase.moved.hot_pages[layer].*count +=
          now_.hot_pages[layer].*count - before_.hot_pages[layer].*count;
    };
    add(&TransferCounters::HotPages::num_hits);
    add(&TransferCounters::HotPages::num_misses);
    add(&TransferCounters::HotPages::num_evictions);
  }
  phase.moved.key_bytes += now_.key_bytes - before_.key_bytes;
  const int64_t num_loads = now_.num_loads - before_.num_loads;
  phase.moved.num_loads += num_loads;
  phase.moved.num_copies += now_.num_copies - before_.num_copies;
  phase.num_slot_waits += std::max<int64_t>(0, num_loads - residency_.num_slots());
}

void Observer::read_transfers(EngineStats& stats) const {
  const auto sum = [](const std::vector<int64_t>& layers) {
    return std::accumulate(layers.begin(), layers.end(), int64_t{0});
  };
  stats.kv_h2d_bytes = sum(now_.loaded_bytes);
  stats.kv_d2h_bytes = sum(now_.written_bytes);
  stats.num_hot_page_hits = 0;
  stats.num_hot_page_misses = 0;
  for (const TransferCounters::HotPages& hot : now_.hot_pages) {
    stats.num_hot_page_hits += hot.num_hits;
    stats.num_hot_page_misses += hot.num_misses;
  }
  stats.num_slot_waits = prefill_.num_slot_waits + decode_.num_slot_waits + draft_.num_slot_waits;
}

// Density is selected over visible tokens: 1 without a selecting policy, unknown if the rule cannot
// tell. Density transferred is loaded bytes over the bytes that full attention would load.
PhaseObservations Observer::describe(const PhaseCounts& counts, const SelectionRule& rule) const {
  PhaseObservations result{.num_steps = counts.num_steps,
                           .num_tokens = counts.num_tokens,
                           .num_loads = counts.moved.num_loads,
                           .num_copies = counts.moved.num_copies,
                           .num_slot_waits = counts.num_slot_waits,
                           .layers = {},
                           .key_bytes = counts.moved.key_bytes,
                           .num_sequence_steps = counts.num_sequence_steps,
                           .num_fallbacks = counts.num_fallbacks,
                           .num_full_rows = counts.num_full_rows,
                           .density_selected = {}};
  if (counts.num_steps > 0 && !rule.selects()) result.density_selected = 1;
  if (counts.num_visible_tokens > 0 && counts.selected_is_known) {
    result.density_selected = static_cast<double>(counts.num_selected_tokens) /
                              static_cast<double>(counts.num_visible_tokens);
  }
  for (size_t layer = 0; layer < counts.moved.loaded_bytes.size(); ++layer) {
    LayerObservations of_layer{.h2d_bytes = counts.moved.loaded_bytes[layer],
                               .d2h_bytes = counts.moved.written_bytes[layer],
                               .density_selected = result.density_selected,
                               .density_transferred = {},
                               .hot_pages = {}};
    if (layer < counts.moved.hot_pages.size()) {
      const TransferCounters::HotPages& hot = counts.moved.hot_pages[layer];
      of_layer.hot_pages = {hot.num_hits, hot.num_misses, hot.num_evictions};
    }
    if (counts.history_bytes > 0) {
      of_layer.density_transferred =
          static_cast<double>(of_layer.h2d_bytes) / static_cast<double>(counts.history_bytes);
    }
    result.layers.push_back(of_layer);
  }
  if (counts.num_visible_tiles > 0) describe_tiles(counts, result);
  return result;
}

// The device counts the tiles of masks. Layers and passes without a mask attend to everything, so
// of all visible tiles only those are missing that a mask has left out.
void Observer::describe_tiles(const PhaseCounts& counts, PhaseObservations& result) const {
  const TileScorer* scorer = policies_.prefill().tile_scorer();
  const auto layers = scorer ? scorer->tile_counts() : std::span<const TileCounts>{};
  int64_t num_left_out = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const int64_t left_out = layers[layer].num_visible - layers[layer].num_set;
    num_left_out += left_out;
    result.num_tiles_cut += layers[layer].num_cut;
    if (layer >= result.layers.size()) continue;  // KV is on the device
    result.layers[layer].density_selected =
        static_cast<double>(counts.num_visible_tiles - left_out) /
        static_cast<double>(counts.num_visible_tiles);
  }
  result.num_tiles_visible = counts.num_visible_tiles * std::ssize(layers);
  result.num_tiles_set = result.num_tiles_visible - num_left_out;
  result.density_selected =
      static_cast<double>(result.num_tiles_set) / static_cast<double>(result.num_tiles_visible);
}

Observations Observer::observations() const {
  Observations result;
  result.sparse_policy = policies_.name();
  result.prefill = describe(prefill_, rules_.prefill);
  result.decode = describe(decode_, verifies_ ? rules_.verify : rules_.decode);
  result.draft = describe(draft_, rules_.decode);
  result.captured_mass = mass_.describe();
  return result;
}

}  // namespace sluice
