// Uploads the lists of all layers once; a selection then copies from them on the device.
#include "lab/lists/list_replay.h"

#include "lab/lists/replay_pages.h"

namespace sluice::lab {

SelectionRule ListReplay::rule(const KvBlockShape& block) const {
  const SelectionRule rule = policy_->rule(block);
  check_replay(*lists_, {.rule = rule, .first_pos = first_pos_});
  return rule;
}

size_t ListReplay::table_bytes(const RecordedLists& lists, const KvLayout& layout) {
  const int64_t num_lists =
      int64_t{layout.num_layers} * layout.block.num_kv_heads * lists.num_steps;
  return static_cast<size_t>(num_lists * lists.rule.top_pages) * sizeof(int32_t);
}

PolicyMemory ListReplay::memory(const KvLayout& layout, int32_t num_blocks,
                                const PolicyLimits& limits) const {
  PolicyMemory memory = policy_->memory(layout, num_blocks, limits);
  memory.list_bytes += table_bytes(*lists_, layout);
  return memory;
}

void ListReplay::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                            const PolicyLimits& limits) {
  policy_->initialize(device, layout, num_blocks, limits);
  const SelectionRule rule = this->rule(layout.block);
  page_rule_ = rule.page_rule;
  num_kv_heads_ = layout.block.num_kv_heads;
  memory_ = device.allocate(table_bytes(*lists_, layout), MemoryKind::kDevice);
  table_ =
      TensorView(memory_.data(), DType::kI32,
                 {layout.num_layers * num_kv_heads_, lists_->num_steps, rule.page_rule.top_pages});
  const auto stream = device.make_stream({.name = "recorded lists"});
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    const std::vector<int32_t> lists = replayed_lists(*lists_,
                                                      {.num_layers = layout.num_layers,
                                                       .num_heads = layout.block.num_kv_heads,
                                                       .rule = rule,
                                                       .first_pos = first_pos_},
                                                      layer);
    const TensorView rows = table_.rows(layer * num_kv_heads_, num_kv_heads_);
    stream->copy({.dst = rows.bytes(),
                  .src = reinterpret_cast<const std::byte*>(lists.data()),
                  .num_bytes = rows.num_bytes()});
    stream->synchronize();  // before `lists` ends
  }
}

Selection ListReplay::select(Stream& stream, const SelectInput& input) {
  const Selection selection = policy_->select(stream, input);
  // Lists of a pass that no row at first_pos can be in may have no room for the recorded ones.
  const PageList* pages = listed_in(selection);
  if (pages == nullptr || input.batch.max_kv_tokens <= first_pos_) return selection;
  // With one list for all heads, that of the first.
  const int64_t num_heads = pages->page_ids.dim(1);
  replay_pages(stream, {.recorded = table_.rows(input.layer.value * num_kv_heads_, num_heads),
                        .first_pos = static_cast<int32_t>(first_pos_),
                        .kv_end = input.kv_end,
                        .rule = page_rule_,
                        .pages = *pages});
  return selection;
}

void replay_lists(PolicyPair& policies, const RecordedLists& lists, int64_t first_pos) {
  policies.wrap_decode([&](std::unique_ptr<Policy> policy) {
    return std::make_unique<ListReplay>(std::move(policy), lists, first_pos);
  });
}

}  // namespace sluice::lab
