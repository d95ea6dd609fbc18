// The least work of a prompt, from the dimensions of published models.
#include "cli/bench/work.h"

#include <string>

#include <gtest/gtest.h>

#include "support/source_dir.h"

namespace sluice::cli {
namespace {

// What attention adds when a prompt has twice the tokens, beside twice the products.
double attention_of_twice(const std::string& shape, double num_tokens) {
  EngineOptions engine;
  engine.model = (testing::source_dir() / "models/shapes" / shape).string();
  const Work work(engine);
  const double logits = 2 * work.table_elements;
  return work.prefill_flops(2 * num_tokens) - 2 * work.prefill_flops(num_tokens) + logits;
}

// The sum over tokens of those they see grows by n * n.
TEST(WorkTest, EveryLayerOfADenseModelAttends) {
  EXPECT_DOUBLE_EQ(attention_of_twice("llama-3.1-8b", 16384), 4.0 * 32 * 32 * 128 * 16384 * 16384);
}

TEST(WorkTest, AFourthOfAHybridsLayersAttends) {
  EXPECT_DOUBLE_EQ(attention_of_twice("qwen3.5-27b", 16384), 4.0 * 16 * 24 * 256 * 16384 * 16384);
}

}  // namespace
}  // namespace sluice::cli
