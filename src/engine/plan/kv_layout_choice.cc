// The element and the size of blocks, from options, model and device.
#include "engine/plan/kv_layout_choice.h"

#include "core/error.h"

namespace sluice {
namespace {

// Errors: kUnsupported on a GPU for values in 8 bits beside keys in bf16.
void check_halves(const PlanInput& input, const KvBlockShape& block) {
  if (!block.keys_in_bf16 || input.device.kind() != DeviceKind::kCuda) return;
  fail(ErrorCode::kUnsupported,
       "kv_cache_dtype is '{}', but the keys of {} have a bias: a few channels are so large that "
       "8 bits keep nothing of the others. They stay in bf16 beside values in 8 bits, whose "
       "kernels have not run on a GPU yet; leave it at 'auto', and take --kv-offload where KV does "
       "not fit the device",
       kv_cache_dtype_name(input.options.kv.cache_dtype),
       architecture_name(input.config.architecture));
}

}  // namespace

KvLayout choose_kv_layout(const PlanInput& input, KvOffload kv_offload) {
  const int32_t by_mode =
      kv_offload == KvOffload::kOff ? kDefaultBlockTokens : kDefaultOffloadedBlockTokens;
  const int32_t block_tokens = input.options.kv.block_size.value_or(by_mode);
  validate_block_tokens(block_tokens);
  const KvElement element = kv_element_of(input.options.kv.cache_dtype);
  const KvLayout layout{.num_layers = input.config.num_kv_layers(),
                        .block = input.config.kv_block(element, block_tokens)};
  check_halves(input, layout.block);
  return layout;
}

}  // namespace sluice
