// Pins of hybrids hold a snapshot with their blocks: a question about a pinned text goes on from
// its last whole block, whatever came between, with the bits of one that is computed.
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "io/expect_error.h"
#include "sluice/inspect.h"

namespace sluice {
namespace {

using testing::branch;
using testing::Compared;
using testing::kHybrid;
using testing::random_tokens;
using testing::sampled;
using testing::snapshot_bytes;
using testing::Tokens;
using testing::whole;

// 40 blocks and 6 snapshots.
EngineOptions small_options() {
  EngineOptions options = testing::tiny_options(kHybrid);
  options.max_model_len = 256;
  const MemoryPlan plan = plan_memory(options);
  options.kv.cache_bytes = *options.kv.cache_bytes / static_cast<size_t>(plan.num_blocks) * 40;
  options.state_cache.max_bytes = static_cast<size_t>(6 * snapshot_bytes());
  return options;
}

// Other prompts, until all blocks and snapshots without a holder have gone.
void fill_memory(LLM& llm) {
  for (uint64_t seed = 100; seed < 110; ++seed) {
    llm.generate({random_tokens(200, seed)}, sampled(20, 1));
  }
}

TEST(SnapshotPins, StayUntilTheyAreDeleted) {
  Compared compared(small_options());
  // Ends within a block, with one, and a token after one.
  for (const int64_t length : {100, 96, 97}) {
    LLM llm(small_options());
    const Tokens document = random_tokens(length, 1);
    const PinInfo pin = llm.pin("doc", document);
    EXPECT_EQ(pin.num_tokens, 96);
    EXPECT_EQ(pin.num_blocks, 6);
    EXPECT_EQ(pin.num_device_tokens, 96);
    EXPECT_GT(pin.num_bytes, snapshot_bytes());
    const Tokens question = branch(document, length, 20, 2);
    for (int i = 0; i < 2; ++i) {
      fill_memory(llm);
      EXPECT_EQ(compared.cached(llm, question, "pinned"), 96) << length;
    }
    EXPECT_TRUE(llm.unpin("doc"));
    fill_memory(llm);
    EXPECT_EQ(compared.cached(llm, question, "deleted"), 0);
  }
}

// A text that is in the cache, deeper than the pin: its own end has a snapshot all the same.
TEST(SnapshotPins, OfATextThatIsCachedAndContinued) {
  Compared compared(small_options());
  LLM llm(small_options());
  const Tokens text = random_tokens(220, 1);
  compared.cached(llm, text, "first");
  const PinInfo pin = llm.pin("doc", branch(text, 120, 0, 0));
  EXPECT_EQ(pin.num_tokens, whole(120));
  fill_memory(llm);
  EXPECT_EQ(compared.cached(llm, branch(text, 120, 30, 2), "pinned"), whole(120));
}

TEST(SnapshotPins, LeaveHalfOfThePlacesToRequests) {
  Compared compared(small_options());
  LLM llm(small_options());
  for (uint64_t i = 0; i < 3; ++i) llm.pin("pin" + std::to_string(i), random_tokens(48, i));
  const std::string refused =
      expect_error(ErrorCode::kDoesNotFit, [&] { llm.pin("fourth", random_tokens(48, 9)); });
  EXPECT_TRUE(contains(refused, "raise state_cache_bytes")) << refused;
  llm.unpin("pin0");
  llm.pin("pin1", random_tokens(64, 5));
  EXPECT_EQ(llm.pin("fourth", random_tokens(48, 9)).num_tokens, 48);
  fill_memory(llm);
  EXPECT_EQ(compared.cached(llm, branch(random_tokens(64, 5), 64, 9, 1), "replaced"), 64);
  EXPECT_EQ(compared.cached(llm, branch(random_tokens(48, 9), 48, 9, 1), "fourth"), 48);
  EXPECT_EQ(compared.cached(llm, branch(random_tokens(48, 0), 48, 9, 1), "deleted"), 0);
}

TEST(SnapshotPins, NeedAPlace) {
  EngineOptions options = small_options();
  options.state_cache.max_bytes = 0;
  LLM llm(options);
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kDoesNotFit, [&] { llm.pin("doc", random_tokens(48, 1)); }),
               "raise state_cache_bytes"));
}

}  // namespace
}  // namespace sluice
