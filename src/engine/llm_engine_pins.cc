// Requests that hold a prefix when they end.
#include "engine/llm_engine.h"

namespace sluice {

// One longest request must still fit beside all pins. A store that is only read promises nothing.
void LlmEngine::make_pins() {
  const int32_t block_tokens = plan_.kv_layout.block.block_tokens;
  Pins::Parts parts{
      .blocks = *blocks_,
      .max_blocks = plan_.num_blocks - blocks_for_tokens(plan_.max_model_len, block_tokens),
      .block_bytes = static_cast<int64_t>(plan_.kv_layout.block_bytes_all_layers()),
      .on_host = offloads(plan_)};
  if (kv_store_ && kv_store_->writes()) parts.store = kv_store_.get();
  pins_ = std::make_unique<Pins>(parts);
}

SequenceId LlmEngine::add_pin(const std::string& name, std::vector<int32_t> prompt,
                              const SamplingParams& params, CancelFlag cancel) {
  SamplingParams one = params;
  one.max_tokens = 1;
  one.min_tokens = 0;
  auto sequence = make_sequence(std::move(prompt), one, std::move(cancel));
  const SequenceId id = sequence->id;
  sequence->pin = name;
  scheduler_->add(std::move(sequence));
  return id;
}

}  // namespace sluice
