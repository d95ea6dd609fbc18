// Derives the TileRule from the options, and the sizes of masks and windows from the limits.
#include "attention/policies/tile_policy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int64_t kTile = kMaskTileTokens;

// Defaults of the options, in tokens.
constexpr int32_t kTileSinkTokens = 128;
constexpr int32_t kTileRecentTokens = 128;
constexpr int32_t kThresholdTokens = 4096;
constexpr int32_t kTailTokens = 128;

// Records of a window take the first of these. Where that is for fewer rows than kWindowRows, they
// take what kWindowRows rows need, up to the second: each window loads all keys, and with few rows
// a loaded KV tile meets few probes. Windows of 512 rows still give score_tiles enough probes to
// share the loads of each KV tile.
constexpr size_t kRecordBytes = size_t{64} << 20;
constexpr size_t kMostRecordBytes = size_t{512} << 20;
constexpr int64_t kWindowRows = 8192;
constexpr int64_t kMinWindowRows = 512;

int32_t tiles_of_option(const std::optional<int32_t>& tokens) {
  return static_cast<int32_t>(mask_tiles_of(tokens.value_or(0)));
}

TileRule make_rule(const SparseOptions& options, TileRule rule) {
  rule.is_share_of_rest = options.coverage_of == CoverageOf::kRest;
  rule.sink_tokens = options.sink_tokens.value_or(kTileSinkTokens);
  rule.recent_tokens = options.recent_tokens.value_or(kTileRecentTokens);
  rule.threshold_tokens = options.threshold_tokens.value_or(kThresholdTokens);
  rule.tail_tokens = options.tail_tokens.value_or(kTailTokens);
  rule.min_tiles = tiles_of_option(options.min_budget_tokens);
  rule.max_tiles = tiles_of_option(options.max_budget_tokens);
  return rule;
}

void check_budgets(const SparseOptions& options) {
  if (!options.min_budget_tokens || !options.max_budget_tokens ||
      *options.min_budget_tokens <= *options.max_budget_tokens) {
    return;
  }
  fail(ErrorCode::kInvalidArgument,
       "sparse_min_budget_tokens is {}, above sparse_max_budget_tokens, which is {}; lower the one "
       "or raise the other",
       *options.min_budget_tokens, *options.max_budget_tokens);
}

// The cases of attends_everything that do not depend on where the prompt ends.
int64_t find_full_rows_end(const TileRule& rule) {
  if (rule.choice == TileChoice::kCoverage && rule.share >= kMassOne) {
    return std::numeric_limits<int64_t>::max();
  }
  const int64_t below_threshold = mask_tiles_of(rule.threshold_tokens);
  const int64_t within_top = rule.choice == TileChoice::kTop ? rule.top_tiles : 0;
  return std::max(below_threshold, within_top) * kTile;
}

}  // namespace

int64_t num_mask_words(int64_t num_lists, const PolicyLimits& limits) {
  const int64_t num_words = (mask_tiles_of(limits.max_tokens) + 31) / 32;
  return num_lists * mask_tiles_of(limits.max_rows) * num_words;
}

TileMask make_mask(const TensorView& words, int64_t num_lists, const PrefillSpan& span) {
  SLUICE_CHECK(span.first_pos % kTile == 0, "a pass begins at {}", span.first_pos);
  const int64_t num_words = (mask_tiles_of(span.end_pos()) + 31) / 32;
  const int64_t num_q_tiles = mask_tiles_of(span.num_rows);
  SLUICE_CHECK(num_lists * num_q_tiles * num_words <= words.dim(0), "{} query tiles, {} words",
               num_q_tiles, num_words);
  return {.bits = TensorView(words.bytes(), DType::kI32, {1, num_lists, num_q_tiles, num_words}),
          .first_q_tile = static_cast<int32_t>(span.first_pos / kTile)};
}

TilePolicy::TilePolicy(std::string_view name, const SparseOptions& options, const TileRule& choice)
    : Policy(name, Phase::kPrefill),
      options_(options),
      tile_rule_(make_rule(options, choice)),
      dense_layers_(options.dense_layers.value_or(0)),
      full_rows_end_(find_full_rows_end(tile_rule_)) {
  validate(options);
  check_budgets(options);
}

int64_t TilePolicy::num_list_heads(const KvBlockShape& block) const {
  return options_.shared_list ? 1 : block.num_kv_heads;
}

TilePassSizes TilePolicy::pass_sizes(const KvLayout& layout, const PolicyLimits& limits) const {
  return {.layout = layout,
          .limits = limits,
          .num_lists = num_list_heads(layout.block),
          .window_rows = max_window_rows(limits)};
}

SelectionRule TilePolicy::rule(const KvBlockShape& block) const {
  if (block.block_tokens % kTile != 0) {
    fail(ErrorCode::kInvalidArgument,
         "sparse policy '{}' attends by tiles of {} tokens, but block_size is {}; take a multiple "
         "of {}, such as {}",
         name(), kTile, block.block_tokens, kTile, mask_tiles_of(block.block_tokens) * kTile);
  }
  return {.form = SelectionForm::kTileMasks,
          .full_rows_end = full_rows_end_,
          .num_masks = static_cast<int32_t>(num_list_heads(block))};
}

// ---- Memory ------------------------------------------------------------------------------------

TilePolicy::Memory TilePolicy::cut_memory(Arena& arena, const KvLayout& layout,
                                          const PolicyLimits& limits) const {
  return {.bits = arena.tensor(DType::kI32, {num_mask_words(num_list_heads(layout.block), limits)}),
          .counts = arena.tensor(DType::kI64, {layout.num_layers, 3})};
}

PolicyMemory TilePolicy::memory(const KvLayout& layout, int32_t, const PolicyLimits& limits) const {
  Arena plan;
  const Memory memory = cut_memory(plan, layout, limits);
  return {.summary_bytes = 0,
          .list_bytes = plan.used_bytes(),
          .pinned_bytes = memory.counts.num_bytes()};
}

void TilePolicy::initialize(Device& device, const KvLayout& layout, int32_t,
                            const PolicyLimits& limits) {
  num_layers_ = layout.num_layers;
  num_list_heads_ = num_list_heads(layout.block);
  window_rows_ = max_window_rows(limits);
  const PolicyMemory sizes = TilePolicy::memory(layout, 0, limits);
  device_memory_ = device.allocate(sizes.list_bytes, MemoryKind::kDevice);
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  memory_ = cut_memory(arena, layout, limits);
  host_counts_ = device.allocate(sizes.pinned_bytes, MemoryKind::kPinned);
  std::memset(host_counts_.data(), 0, host_counts_.size_bytes());
}

int32_t TilePolicy::max_window_rows(const PolicyLimits& limits) const {
  const int64_t scope_tiles = mask_tiles_of(prefill_scope_tokens());
  const auto fitting = static_cast<int64_t>(kRecordBytes / record_bytes(limits));
  const auto at_most = static_cast<int64_t>(kMostRecordBytes / record_bytes(limits));
  const int64_t raised = std::min(mask_tiles_of(kWindowRows), at_most);
  const int64_t least = mask_tiles_of(kMinWindowRows);
  const int64_t wanted =
      std::min(std::max({fitting, raised, least}), mask_tiles_of(limits.max_rows));
  return static_cast<int32_t>((wanted + scope_tiles - 1) / scope_tiles * scope_tiles * kTile);
}

// ---- A selection -------------------------------------------------------------------------------

bool TilePolicy::makes_mask(const SelectInput& input) const {
  return input.layer.value >= dense_layers_ && input.span.end_pos() > full_rows_end_;
}

int32_t TilePolicy::window_rows(const SelectInput& input) const {
  return makes_mask(input) ? window_rows_ : 0;
}

TileMask TilePolicy::mask_of(const SelectInput& input) const {
  return make_mask(memory_.bits, num_list_heads_, input.span);
}

TensorView TilePolicy::counts_of(Stream& stream, LayerId layer) {
  const TensorView& counts = memory_.counts;
  if (!std::exchange(counts_are_zeroed_, true)) stream.fill(counts.bytes(), counts.num_bytes(), 0);
  return counts.rows(layer.value, 1).reshape({3});
}

// The counts of all layers are copied after the last one: 24 bytes a layer, once a pass.
Selection TilePolicy::select(Stream& stream, const SelectInput& input) {
  if (!makes_mask(input)) return {};
  if (input.layer.value + 1 == num_layers_) {
    stream.copy({.dst = host_counts_.data(),
                 .src = memory_.counts.bytes(),
                 .num_bytes = memory_.counts.num_bytes()});
  }
  return MaskedTiles{.mask = mask_of(input), .columns = {}};
}

// From the first tile whose rows do not all attend to everything and were not measured, up to the
// tiles of the tail.
TileRows TilePolicy::audited_rows(const SelectInput& input) const {
  if (!makes_mask(input)) return {};
  const PrefillSpan& span = input.span;
  const int64_t before_tail = std::max<int64_t>(0, span.prompt_end - tile_rule_.tail_tokens);
  const int64_t measured_end = mask_tiles_of(span.num_measured) * kTile;
  const int64_t begin = std::max({span.first_pos, full_rows_end_, measured_end});
  const int64_t end = std::min(span.end_pos(), before_tail) / kTile * kTile;
  if (begin >= end) return {};
  return {.first = static_cast<int32_t>(begin - span.first_pos),
          .count = static_cast<int32_t>(end - begin)};
}

std::span<const TileCounts> TilePolicy::tile_counts() const {
  static_assert(sizeof(TileCounts) == 3 * sizeof(int64_t));
  return {reinterpret_cast<const TileCounts*>(host_counts_.data()),
          static_cast<size_t>(num_layers_)};
}

}  // namespace sluice
