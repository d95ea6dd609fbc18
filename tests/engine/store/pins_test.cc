// Pins hold the beginnings of prompts in memory, or leave them to the store, until they are
// deleted.
#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "sluice/llm.h"

namespace sluice {
namespace {

using testing::random_tokens;
using testing::sampled;
using testing::store_options;
using testing::TemporaryStore;
using testing::with_store;

// 40 blocks, of which pins may hold 24: 16 are left for a request of 256 tokens.
EngineOptions small_options(KvOffload mode) {
  EngineOptions options = store_options(mode);
  options.max_model_len = 256;
  const size_t block_bytes =
      testing::make_store_engine(options)->plan().kv_layout.block_bytes_all_layers();
  options.kv.host_bytes = 40 * block_bytes;
  options.kv.cache_bytes.reset();
  if (mode == KvOffload::kOff) options.kv.cache_bytes = 40 * block_bytes;
  return options;
}

// Other prompts, until all blocks without a holder are evicted.
void fill_memory(LLM& llm) {
  for (uint64_t seed = 100; seed < 106; ++seed) {
    llm.generate({random_tokens(200, seed)}, sampled(1, 1));
  }
}

int64_t num_found(LLM& llm, const std::vector<int32_t>& document) {
  std::vector<int32_t> question = document;
  question.push_back(7);
  return llm.generate({question}, sampled(1, 1))[0].num_cached_tokens;
}

class PinsOfMode : public ::testing::TestWithParam<KvOffload> {};

INSTANTIATE_TEST_SUITE_P(Modes, PinsOfMode,
                         ::testing::Values(KvOffload::kOff, KvOffload::kChunked,
                                           KvOffload::kLayerwise),
                         [](const auto& one) { return kv_offload_name(one.param); });

TEST_P(PinsOfMode, StayInMemoryUntilTheyAreDeleted) {
  LLM llm(small_options(GetParam()));
  const std::vector<int32_t> document = random_tokens(100, 1);
  const PinInfo pin = llm.pin("doc", document);
  EXPECT_EQ(pin.name, "doc");
  EXPECT_EQ(pin.num_blocks, 6);
  EXPECT_EQ(pin.num_tokens, 96);
  const bool on_host = GetParam() != KvOffload::kOff;
  EXPECT_EQ(on_host ? pin.num_host_tokens : pin.num_device_tokens, 96);
  EXPECT_EQ(pin.num_disk_tokens, 0);
  EXPECT_GT(pin.num_bytes, 0);
  fill_memory(llm);
  EXPECT_EQ(num_found(llm, document), 96);
  EXPECT_TRUE(llm.unpin("doc"));
  EXPECT_FALSE(llm.unpin("doc"));
  EXPECT_TRUE(llm.pins().empty());
  fill_memory(llm);
  EXPECT_EQ(num_found(llm, document), 0);
}

// What a pin holds of KV in 8 bits answers as what is computed does.
TEST_P(PinsOfMode, HoldKvOfEightBits) {
  for (const KvCacheDtype dtype : {KvCacheDtype::kFp8, KvCacheDtype::kInt8}) {
    EngineOptions options = store_options(GetParam());
    options.kv.cache_dtype = dtype;
    LLM llm(options), without(options);
    std::vector<int32_t> question = random_tokens(100, 1);
    const PinInfo pin = llm.pin("doc", question);
    EXPECT_EQ(pin.num_tokens, 96);
    question.push_back(7);
    const RequestOutput found = llm.generate({question}, sampled(8, 1))[0];
    EXPECT_EQ(found.num_cached_tokens, 96);
    testing::expect_all_same({found}, without.generate({question}, sampled(8, 1)),
                             std::string("KV in 8 bits"));
  }
}

// Two pins share the blocks of a common beginning; one name is one pin.
TEST_P(PinsOfMode, ShareBlocksAndReplaceEachOther) {
  LLM llm(small_options(GetParam()));
  std::vector<int32_t> longer = random_tokens(160, 1);
  const std::vector<int32_t> shorter(longer.begin(), longer.begin() + 80);
  llm.pin("b", longer);
  llm.pin("a", shorter);
  ASSERT_EQ(llm.pins().size(), 2u);
  EXPECT_EQ(llm.pins()[0].name, "a");
  llm.unpin("b");
  fill_memory(llm);
  EXPECT_EQ(num_found(llm, longer), 80) << "what the other pin holds";
  llm.pin("a", random_tokens(64, 2));
  EXPECT_EQ(llm.pins().size(), 1u);
  fill_memory(llm);
  EXPECT_EQ(num_found(llm, shorter), 0);
  EXPECT_EQ(num_found(llm, random_tokens(64, 2)), 64);
}

// One longest request fits beside all pins; what does not is refused before it is computed.
TEST_P(PinsOfMode, LeaveRoomForOneRequest) {
  LLM llm(small_options(GetParam()));
  llm.pin("first", random_tokens(200, 1));   // 12 blocks
  llm.pin("second", random_tokens(176, 2));  // 11
  try {
    llm.pin("third", random_tokens(40, 3));
    FAIL() << "no room";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDoesNotFit) << error.what();
  }
  const auto outputs = llm.generate({random_tokens(200, 4), random_tokens(200, 5)}, sampled(50, 1));
  EXPECT_EQ(outputs[0].token_ids.size(), 50u);
  EXPECT_EQ(outputs[1].token_ids.size(), 50u);
  EXPECT_EQ(num_found(llm, random_tokens(200, 1)), 192);
}

// With a store the rest is there, whatever the length of a prompt that is written otherwise.
TEST_P(PinsOfMode, LeaveTheRestToTheStore) {
  const TemporaryStore store;
  EngineOptions options = with_store(small_options(GetParam()), store);
  options.kv_store.min_tokens = 10'000;
  LLM llm(options);
  llm.pin("first", random_tokens(200, 1));
  llm.pin("second", random_tokens(200, 2));
  const PinInfo third = llm.pin("third", random_tokens(200, 3));
  EXPECT_EQ(third.num_tokens, 192);
  EXPECT_EQ(third.num_device_tokens + third.num_host_tokens, 0);
  llm.flush_kv_store();
  EXPECT_EQ(store.blocks().size(), 36u);
  for (const PinInfo& pin : llm.pins()) EXPECT_EQ(pin.num_disk_tokens, 192) << pin.name;
  fill_memory(llm);
  EXPECT_EQ(num_found(llm, random_tokens(200, 3)), 192) << "read from the store";
  EXPECT_EQ(llm.stats().num_stored_tokens, 192);
}

// A directory with room for 20 blocks, into which others come after the document: it stays there
// only while it is pinned.
TEST(Pins, AreEvictedFromTheStoreLast) {
  const std::vector<int32_t> document = random_tokens(100, 1);
  uint64_t file_bytes = 0;
  {
    const TemporaryStore store;
    LLM(with_store(small_options(KvOffload::kChunked), store)).generate({document}, sampled(1, 1));
    file_bytes = store.blocks().at(0).num_bytes;
  }
  for (const bool is_pinned : {true, false}) {
    const TemporaryStore store;
    EngineOptions options = with_store(small_options(KvOffload::kChunked), store);
    options.kv_store.max_bytes = 20 * file_bytes;
    {
      LLM llm(options);
      llm.pin("doc", document);
      llm.flush_kv_store();
      if (!is_pinned) llm.unpin("doc");
      for (uint64_t seed = 100; seed < 104; ++seed) {
        llm.generate({random_tokens(200, seed)}, sampled(1, 1));
        llm.flush_kv_store();
      }
    }
    LLM after(options);
    EXPECT_EQ(num_found(after, document), is_pinned ? 96 : 0);
    EXPECT_LE(store.blocks().size(), 20u);
  }
}

TEST(Pins, HaveNamesOfFewCharacters) {
  LLM llm(small_options(KvOffload::kOff));
  for (const char* name : {"", ".x", "a b", "a/b", "\xc3\xa4"}) {
    EXPECT_THROW(llm.pin(name, random_tokens(20, 1)), Error) << name;
  }
  EXPECT_THROW(llm.pin(std::string(65, 'x'), random_tokens(20, 1)), Error);
  EXPECT_EQ(llm.pin(std::string(64, 'x'), random_tokens(20, 1)).num_tokens, 16);
  EXPECT_EQ(llm.pin("Aa0._-", random_tokens(15, 1)).num_tokens, 0) << "no whole block";
}

TEST(Pins, CancelledOnesHoldNothing) {
  LLM llm(small_options(KvOffload::kChunked));
  GenerateOptions options;
  options.should_cancel = [] { return true; };
  EXPECT_EQ(llm.pin("doc", random_tokens(200, 1), options).num_tokens, 0);
  EXPECT_TRUE(llm.pins().empty());
}

TEST(Pins, AreFoundWithTheirSaltAlone) {
  LLM llm(small_options(KvOffload::kChunked));
  const std::vector<int32_t> document = random_tokens(100, 1);
  llm.pin("doc", document, {}, "secret");
  EXPECT_EQ(num_found(llm, document), 0);
  SamplingParams params = sampled(1, 1);
  params.cache_salt = "secret";
  EXPECT_EQ(llm.generate({document}, params)[0].num_cached_tokens, 96);
}

}  // namespace
}  // namespace sluice
