// score_line_rows, score_lines, columns, select_diagonals: a walk over the keys for each but the
// last.
#include "attention/policies/minference.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int32_t kVerticalTokens = 1024;
constexpr int32_t kSlashTokens = 6144;
// Of an adaptive budget.
constexpr double kVerticalPart = 0.2;
constexpr double kSlashPart = 0.8;

// A part of the adaptive budget in units of kMassOne; 0 without one.
uint32_t adaptive_share(const SparseOptions& options, double part) {
  validate(options);
  return mass_share(part * options.adaptive_budget.value_or(0.0));
}

std::optional<HeadProfile> make_profile(const SparseOptions& options) {
  const std::string_view alternatives[][2] = {{"sparse_profile", "sparse_adaptive_budget"},
                                              {"sparse_profile", "sparse_vertical_tokens"},
                                              {"sparse_profile", "sparse_slash_tokens"},
                                              {"sparse_adaptive_budget", "sparse_vertical_tokens"},
                                              {"sparse_adaptive_budget", "sparse_slash_tokens"}};
  for (const auto& pair : alternatives) require_one_of(options, "minference", pair);
  if (!options.profile) return std::nullopt;
  return read_head_profile(*options.profile);
}

}  // namespace

MInferencePolicy::MInferencePolicy(const SparseOptions& options)
    : TilePolicy("minference", options,
                 {.choice = TileChoice::kTop, .key_share = adaptive_share(options, kSlashPart)}),
      profile_(make_profile(options)),
      sizes_(sizes_of(options, profile_)),
      lines_({.segment_tokens = segment_tokens_of(options)}),
      column_rule_{.sink_tokens = tile_rule().sink_tokens,
                   .to_segment_end = true,
                   .key_share = adaptive_share(options, kVerticalPart)},
      columns_(lines_.lines().segment_tokens, sizes_.num_verticals, column_rule_.key_share) {
  const bool is_mixed =
      profile_ && (profile_->has(HeadKind::kStream) || profile_->has(HeadKind::kBlockSparse));
  if (is_mixed) mixed_.emplace(*profile_);
  if (!profile_) return;
  set_note(fmt::format("sparse_policy 'minference' takes the sizes of heads from {}: {}",
                       profile_->name(), profile_->describe()));
}

MInferencePolicy::Sizes MInferencePolicy::sizes_of(const SparseOptions& options,
                                                   const std::optional<HeadProfile>& profile) {
  if (profile) {
    Sizes sizes;
    for (int64_t layer = 0; layer < profile->num_layers(); ++layer) {
      const HeadGroup group = profile->group(layer, 0, profile->num_heads());
      sizes.num_verticals = std::max(sizes.num_verticals, group.num_verticals);
    }
    return sizes;
  }
  if (options.adaptive_budget) {  // the shares limit both
    return {.num_verticals = static_cast<int32_t>(kMaxSparseTokens),
            .num_diagonals = static_cast<int32_t>(mask_tiles_of(kMaxSparseTokens))};
  }
  return {.num_verticals = options.vertical_tokens.value_or(kVerticalTokens),
          .num_diagonals =
              static_cast<int32_t>(mask_tiles_of(options.slash_tokens.value_or(kSlashTokens)))};
}

// ---- Memory ------------------------------------------------------------------------------------

size_t MInferencePolicy::record_bytes(const PolicyLimits& limits) const {
  return lines_.record_bytes(limits) + (mixed_ ? mixed_->record_bytes(limits) : 0);
}

PolicyMemory MInferencePolicy::memory(const KvLayout& layout, int32_t num_blocks,
                                      const PolicyLimits& limits) const {
  if (profile_) {
    profile_->require_model(layout.num_layers, limits.num_q_heads * limits.share.num_ranks);
  }
  PolicyMemory memory = TilePolicy::memory(layout, num_blocks, limits);
  const TilePassSizes sizes = pass_sizes(layout, limits);
  const PolicyMemory columns = columns_.memory(sizes);
  const size_t count_bytes = ListCounts::size_bytes(layout, sizes.num_lists);
  memory.list_bytes += lines_.memory_bytes(sizes) + columns.list_bytes + count_bytes;
  memory.pinned_bytes += columns.pinned_bytes + count_bytes;
  if (mixed_) {
    const PolicyMemory of_others = mixed_->memory(sizes);
    memory.list_bytes += of_others.list_bytes;
    memory.pinned_bytes += of_others.pinned_bytes;
  }
  return memory;
}

void MInferencePolicy::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                                  const PolicyLimits& limits) {
  const TilePassSizes sizes = pass_sizes(layout, limits);
  columns_.initialize(device, sizes);
  TilePolicy::initialize(device, layout, num_blocks, limits);
  lines_.initialize(device, sizes);
  diagonal_counts_.initialize(device, layout, sizes.num_lists, sizes_.num_diagonals);
  if (profile_) set_counts(sizes);
  if (mixed_) mixed_->initialize(device, sizes);
}

void MInferencePolicy::set_counts(const TilePassSizes& sizes) {
  const int64_t heads_per_list = sizes.limits.num_q_heads / sizes.num_lists;
  const int64_t first_head = sizes.limits.share.rank * sizes.limits.num_q_heads;
  for (int32_t layer = 0; layer < sizes.layout.num_layers; ++layer) {
    for (int64_t list = 0; list < sizes.num_lists; ++list) {
      const HeadGroup group =
          profile_->group(layer, first_head + list * heads_per_list, heads_per_list);
      columns_.set_count(LayerId(layer), list, group.num_verticals);
      diagonal_counts_.set(LayerId(layer), list,
                           static_cast<int32_t>(mask_tiles_of(group.num_slashes)));
    }
  }
}

// ---- A selection -------------------------------------------------------------------------------

void MInferencePolicy::score(Stream& stream, const SelectInput& input, const TileRows& window,
                             const KeyRun& run) {
  if (run.walk == 0) {
    lines_.score_rows(stream, input, window, run);
    if (mixed_) mixed_->score(stream, input, window, run);
  } else if (run.walk == 1) {
    lines_.score(stream, input, window, run, {.verticals = columns_.scores_of(input, window)});
  } else {
    columns_.gather(stream, input, window, run);
  }
}

void MInferencePolicy::end_walk(Stream& stream, const SelectInput& input, const TileRows& window,
                                int32_t walk) {
  if (walk == 0 && mixed_) {
    mixed_->leave_out_of_lines(stream, input.layer, lines_.records_of(input, window));
  }
  if (walk == 1) columns_.select(stream, input, window, column_rule_);
}

void MInferencePolicy::choose(Stream& stream, const SelectInput& input, const TileRows& window) {
  select_diagonals(stream, {.diagonals = lines_.diagonals_of(input, window),
                            .max_count = diagonal_counts_.of(stream, input.layer),
                            .segment_tokens = lines_.lines().segment_tokens,
                            .batch = input.batch,
                            .rows = window,
                            .prompt_end = input.span.prompt_end,
                            .rule = tile_rule(),
                            .mask = mask_of(input),
                            .counts = counts_of(stream, input.layer)});
  if (mixed_) {
    mixed_->add(
        stream, input, window,
        {.rule = tile_rule(), .mask = mask_of(input), .counts = counts_of(stream, input.layer)});
  }
}

Selection MInferencePolicy::select(Stream& stream, const SelectInput& input) {
  Selection selection = TilePolicy::select(stream, input);
  if (auto* tiles = std::get_if<MaskedTiles>(&selection)) {
    tiles->columns = columns_.columns_of(input);
  }
  return selection;
}

}  // namespace sluice
