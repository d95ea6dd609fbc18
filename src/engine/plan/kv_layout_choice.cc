// The element and the size of blocks, from options, model and device.
#include "engine/plan/kv_layout_choice.h"

#include "core/error.h"

namespace sluice {
namespace {

// Errors: kUnsupported for 8 bits where the model's answers would lose their sense.
void check_8_bits(const PlanInput& input) {
  if (!input.config.attention().qkv_bias) return;
  fail(ErrorCode::kUnsupported,
       "kv_cache_dtype is '{}', but the keys of {} have a bias: a few channels are so large that "
       "8 bits keep nothing of the others, and the model answers nonsense; leave it at 'auto', "
       "and take --kv-offload where KV does not fit the device",
       kv_cache_dtype_name(input.options.kv.cache_dtype),
       architecture_name(input.config.architecture));
}

}  // namespace

KvLayout choose_kv_layout(const PlanInput& input, KvOffload kv_offload) {
  const int32_t by_mode =
      kv_offload == KvOffload::kOff ? kDefaultBlockTokens : kDefaultOffloadedBlockTokens;
  const int32_t block_tokens = input.options.kv.block_size.value_or(by_mode);
  validate_block_tokens(block_tokens);
  const Attention& attention = input.config.attention();
  const KvLayout layout{.num_layers = input.config.num_kv_layers(),
                        .block = {.num_kv_heads = attention.num_kv_heads,
                                  .head_dim = attention.padded_head_dim(),
                                  .block_tokens = block_tokens,
                                  .element = kv_element_of(input.options.kv.cache_dtype)}};
  if (layout.block.element != KvElement::kBFloat16) check_8_bits(input);
  return layout;
}

}  // namespace sluice
