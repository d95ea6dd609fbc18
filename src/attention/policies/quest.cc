// quest as three ops of ops/pages/page_selection.h: bounds of keys, scores of pages, lists.
#include "attention/policies/quest.h"

namespace sluice {
namespace {

// Defaults of the options, in tokens.
constexpr int32_t kQuestTopkTokens = 2048;
constexpr int32_t kQuestSinkTokens = 16;
constexpr int32_t kQuestRecentTokens = 64;

}  // namespace

QuestPolicy::QuestPolicy(const SparseOptions& options)
    : PageRulePolicy("quest", Phase::kDecode, options,
                     {.topk_tokens = kQuestTopkTokens,
                      .sink_tokens = kQuestSinkTokens,
                      .recent_tokens = kQuestRecentTokens,
                      .threshold_tokens = 0},
                     ListOf::kRow) {}

// The summaries: minimum and maximum per channel of every page, KV head and layer, by block id.
TensorView QuestPolicy::cut_bounds(Arena& arena, const KvLayout& layout, int32_t num_blocks) const {
  const int32_t tokens = choose_page_tokens(options(), layout.block);
  return arena.tensor(DType::kBF16,
                      {int64_t{layout.num_layers} * num_blocks, layout.block.block_tokens / tokens,
                       layout.block.num_kv_heads, 2, layout.block.head_dim});
}

// One count per page, whatever the number of layers and heads; absent unless asked for.
TensorView QuestPolicy::cut_reads(Arena& arena, const KvLayout& layout, int32_t num_blocks,
                                  const PolicyLimits& limits) const {
  if (!limits.counts_reads) return {};
  const int32_t tokens = choose_page_tokens(options(), layout.block);
  return arena.tensor(DType::kI32, {num_blocks, layout.block.block_tokens / tokens});
}

// One score per sequence, KV head and page, for the largest decode pass.
TensorView QuestPolicy::cut_scores(Arena& arena, const KvLayout& layout,
                                   const PolicyLimits& limits) const {
  const int32_t tokens = choose_page_tokens(options(), layout.block);
  return arena.tensor(DType::kF32, {limits.max_seqs, layout.block.num_kv_heads,
                                    (limits.max_tokens + tokens - 1) / tokens});
}

PolicyMemory QuestPolicy::memory(const KvLayout& layout, int32_t num_blocks,
                                 const PolicyLimits& limits) const {
  PolicyMemory memory = PageRulePolicy::memory(layout, num_blocks, limits);
  Arena summaries, scores;
  cut_bounds(summaries, layout, num_blocks);
  cut_reads(summaries, layout, num_blocks, limits);
  cut_scores(scores, layout, limits);
  memory.summary_bytes += summaries.used_bytes();
  memory.list_bytes += scores.used_bytes();
  return memory;
}

// Two allocations, since bounds grow with the KV cache and scores with a decode pass.
void QuestPolicy::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                             const PolicyLimits& limits) {
  PageRulePolicy::initialize(device, layout, num_blocks, limits);
  Arena plan;
  cut_bounds(plan, layout, num_blocks);
  cut_reads(plan, layout, num_blocks, limits);
  bounds_memory_ = device.allocate(plan.used_bytes(), MemoryKind::kDevice);
  Arena bounds_arena(bounds_memory_.data(), bounds_memory_.size_bytes());
  bounds_ = cut_bounds(bounds_arena, layout, num_blocks);
  reads_ = cut_reads(bounds_arena, layout, num_blocks, limits);
  if (reads_.present()) {
    const auto stream = device.make_stream({.name = "quest"});
    stream->fill(reads_.bytes(), reads_.num_bytes(), 0);
    stream->synchronize();
  }
  Arena scores_plan;
  cut_scores(scores_plan, layout, limits);
  scores_memory_ = device.allocate(scores_plan.used_bytes(), MemoryKind::kDevice);
  Arena scores_arena(scores_memory_.data(), scores_memory_.size_bytes());
  scores_ = cut_scores(scores_arena, layout, limits);
  num_blocks_ = num_blocks;
}

// bounds_ is [layer][block]; a layer's rows are indexed by block id.
KeyBounds QuestPolicy::bounds(LayerId first, int32_t num_layers) const {
  return {.minmax = bounds_.rows(first.value * num_blocks_, num_layers * num_blocks_),
          .page_tokens = page_tokens()};
}

void QuestPolicy::on_keys_written(Stream& stream, const WrittenKv& written) {
  update_key_bounds(stream, {.batch = written.batch,
                             .kv = written.kv,
                             .kv_begin = written.kv_begin,
                             .block_table = written.block_table,
                             .block_ids = written.block_ids,
                             .bounds = bounds(written.layer, written.num_layers),
                             .num_layers = written.num_layers,
                             .layer_stride_bytes = written.layer_stride_bytes});
}

Selection QuestPolicy::select(Stream& stream, const SelectInput& input) {
  const int64_t num_seqs = input.kv_end.dim(0);
  const int64_t max_pages = num_pages(input.batch);
  SLUICE_CHECK(num_seqs <= scores_.dim(0) && max_pages <= scores_.dim(2), "{} sequences, {} pages",
               num_seqs, max_pages);
  // Packed to the batch's longest context, as the lists are.
  const TensorView scores(scores_.bytes(), DType::kF32, {num_seqs, scores_.dim(1), max_pages});
  score_pages(stream, {.q = input.q,
                       .zones = input.zones,
                       .batch = input.batch,
                       .bounds = bounds(input.layer),
                       .block_ids = input.block_ids,
                       .kv_end = input.kv_end,
                       .scores = scores});
  const PageList pages = cut_lists(num_seqs, input.batch);
  select_pages(stream, {.scores = scores,
                        .batch = input.batch,
                        .kv_end = input.kv_end,
                        .rule = page_rule(),
                        .pages = pages,
                        .reads = {.counts = reads_, .block_ids = input.block_ids}});
  return pages;
}

}  // namespace sluice
