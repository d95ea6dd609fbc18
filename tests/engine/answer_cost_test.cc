// Counts the bytes of operator new in this program while a request generates 32K tokens: what a
// token costs the host must not grow with the answer before it.
#include <gtest/gtest.h>

#include "io/temp_dir.h"
#include "sluice/llm.h"
#include "support/new_count.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

// One narrow layer that attends to few tokens, so that 32K steps take seconds.
EngineOptions narrow_options(const std::string& model) {
  EngineOptions options;
  options.model = model;
  options.load_format = LoadFormat::kDummy;
  options.skip_tokenizer_init = true;
  options.device = "cpu";
  options.num_threads = 1;
  options.max_num_seqs = 1;
  options.kv.offload = KvOffload::kOff;
  options.kv.block_size = 2048;
  options.kv.cache_bytes = 8 << 20;
  options.sparse.policy = "full+streaming";
  options.sparse.sink_tokens = 16;
  options.sparse.recent_tokens = 16;
  options.sparse.threshold_tokens = 0;
  return options;
}

// Lists that grow by doubling make one copy in each of the ranges, of a length in proportion to it.
TEST(AnswerCost, ATokenCostsTheSameAfter32KTokens) {
  const TempDir directory;
  directory.write("config.json", R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 160,
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "max_position_embeddings": 40960, "tie_word_embeddings": true,
    "eos_token_id": 1, "hidden_act": "silu", "attention_bias": false})");
  LLM llm(narrow_options(directory.path()));
  SamplingParams params;
  params.max_tokens = 32 << 10;
  params.ignore_eos = true;
  params.logprobs = 1;
  params.seed = 1;
  params.stop = {"a text that never comes"};
  llm.add_request(testing::random_tokens(10, 1), params);
  std::vector<double> bytes_per_token;  // of the ranges that end at 4K, 8K, 16K and 32K
  int64_t range_begin = 2 << 10, bytes_before = 0;
  for (int64_t num_tokens = 1; llm.has_unfinished(); ++num_tokens) {
    const std::vector<RequestOutput> outputs = llm.step();
    ASSERT_EQ(outputs.size(), 1u);
    ASSERT_EQ(outputs[0].token_ids.size(), 1u);
    ASSERT_LE(outputs[0].text.size(), 64u) << "text is repeated";
    if (num_tokens == 2 * range_begin) {
      bytes_per_token.push_back(static_cast<double>(testing::num_new_bytes() - bytes_before) /
                                static_cast<double>(range_begin));
      range_begin = num_tokens;
    }
    if (num_tokens == range_begin) bytes_before = testing::num_new_bytes();
  }
  ASSERT_EQ(bytes_per_token.size(), 4u);
  for (const double bytes : bytes_per_token) {
    EXPECT_GT(bytes, 4) << "a token id is counted";
    EXPECT_LT(bytes, 1.1 * bytes_per_token[0] + 64) << "bytes of a token";
  }
}

}  // namespace
}  // namespace sluice
