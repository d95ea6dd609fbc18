// The addresses of a block in the tier; its keys go through the stage to be summarised.
#include "attention/host_tier_port.h"

namespace sluice {

void HostTierPort::settle() {
  executor_.drop_early_loads();
  offload_.settle_discarded();
}

void HostTierPort::end_in(BlockId id, bool is_whole) {
  if (!is_whole) return;
  offload_.adopt(id);
  if (!summaries_) return;
  for (const LayerId layer : offload_.layout().layers()) {
    summaries_->add(layer, offload_.stage_keys(layer, id), 0, id);
  }
}

std::vector<std::span<std::byte>> HostTierPort::layers(BlockId id) const {
  std::vector<std::span<std::byte>> layers;
  for (const LayerId layer : offload_.layout().layers()) {
    layers.emplace_back(offload_.host().block(layer, id), offload_.layout().block_bytes());
  }
  return layers;
}

}  // namespace sluice
