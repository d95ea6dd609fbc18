// Copies lists to the host, in stream order.
#include "lab/lists/list_recorder.h"

namespace sluice::lab {
namespace {

// Copies `from` into `to`, which is replaced by a larger buffer if needed. The host has waited for
// the previous step, so no transfer uses the old buffer.
void copy_out(Stream& stream, Device& device, const TensorView& from, Buffer& to) {
  if (to.size_bytes() < from.num_bytes()) {
    to = device.allocate(from.num_bytes(), MemoryKind::kPinned);
  }
  stream.copy({.dst = to.data(), .src = from.bytes(), .num_bytes = from.num_bytes()});
}

}  // namespace

void ListRecorder::initialize(Device& device, const KvLayout& layout, int32_t num_blocks,
                              const PolicyLimits& limits) {
  device_ = &device;
  layer_lists_.resize(static_cast<size_t>(layout.num_layers));
  policy_->initialize(device, layout, num_blocks, limits);
}

// The delegate's rule, but lists are made even if they name all pages, so that every step has some.
SelectionRule ListRecorder::rule(const KvBlockShape& block) const {
  SelectionRule rule = policy_->rule(block);
  rule.lists_everything = true;
  return rule;
}

Selection ListRecorder::select(Stream& stream, const SelectInput& input) {
  const Selection selection = policy_->select(stream, input);
  if (const PageList* pages = listed_in(selection)) {
    keep(stream, *pages, layer_lists_.at(static_cast<size_t>(input.layer.value)));
  }
  return selection;
}

// Enqueues the copies of one layer's lists and remembers their shape.
void ListRecorder::keep(Stream& stream, const PageList& pages, LayerLists& lists) {
  const TensorView& ids = pages.page_ids;
  SLUICE_CHECK(ids.dim(2) == 1, "{} query pages", ids.dim(2));
  copy_out(stream, *device_, ids, lists.ids);
  copy_out(stream, *device_, pages.page_count, lists.counts);
  lists.num_seqs = ids.dim(0);
  lists.num_heads = ids.dim(1);
  lists.width = ids.dim(3);
}

std::vector<int32_t> ListRecorder::pages(LayerId layer, int64_t seq_index, int64_t head) const {
  const LayerLists& lists = layer_lists_.at(static_cast<size_t>(layer.value));
  SLUICE_CHECK(seq_index < lists.num_seqs && head < lists.num_heads, "sequence {}, head {}",
               seq_index, head);
  const int64_t list = seq_index * lists.num_heads + head;
  const auto* ids = reinterpret_cast<const int32_t*>(lists.ids.data()) + list * lists.width;
  const int32_t count = reinterpret_cast<const int32_t*>(lists.counts.data())[list];
  return {ids, ids + count};
}

ListRecorder& record_lists(PolicyPair& policies) {
  policies.wrap_decode([](std::unique_ptr<Policy> policy) {
    return std::make_unique<ListRecorder>(std::move(policy));
  });
  return static_cast<ListRecorder&>(policies.of(Phase::kDecode));
}

}  // namespace sluice::lab
