// The element and the size of blocks, from options, model and device.
#include "engine/plan/kv_layout_choice.h"

namespace sluice {

KvLayout choose_kv_layout(const PlanInput& input, KvOffload kv_offload) {
  const int32_t by_mode =
      kv_offload == KvOffload::kOff ? kDefaultBlockTokens : kDefaultOffloadedBlockTokens;
  const int32_t block_tokens = input.options.kv.block_size.value_or(by_mode);
  validate_block_tokens(block_tokens);
  const KvElement element = kv_element_of(input.options.kv.cache_dtype);
  return {.num_layers = input.config.num_kv_layers(),
          .block = input.config.kv_block(element, block_tokens)};
}

}  // namespace sluice
