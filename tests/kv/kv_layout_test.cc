// Bytes of the layout against the KV sizes of real models, and the rule for block_size.
#include "kv/kv_layout.h"

#include <string>

#include <gtest/gtest.h>

#include "core/error.h"

namespace sluice {
namespace {

KvLayout layout(int32_t num_layers, int32_t num_kv_heads, int32_t block_tokens) {
  return {.num_layers = num_layers,
          .block = {.num_kv_heads = num_kv_heads, .head_dim = 128, .block_tokens = block_tokens}};
}

// KV per token in bf16, from the published configurations of the models.
TEST(KvLayout, BytesOfRealModels) {
  EXPECT_EQ(layout(28, 8, 256).token_bytes(), 112u * 1024);  // Qwen3-0.6B
  EXPECT_EQ(layout(36, 8, 256).token_bytes(), 144u * 1024);  // Qwen3-8B
  EXPECT_EQ(layout(32, 8, 256).token_bytes(), 128u * 1024);  // Llama-3.1-8B
  EXPECT_EQ(layout(28, 4, 256).token_bytes(), 56u * 1024);   // Qwen2.5-7B
}

TEST(KvLayout, BlocksAreTokensTimesBlockSize) {
  EXPECT_EQ(layout(28, 8, 256).block_bytes(), 1u << 20);
  EXPECT_EQ(layout(28, 8, 256).block_bytes_all_layers(), 28u << 20);
  EXPECT_EQ(layout(28, 8, 1024).block_bytes(), 4u << 20);
}

// 1M tokens, blocks of 1024 tokens, 64 KV heads, 128 layers: every product exceeds 32 bits.
TEST(KvLayout, BytesDoNotWrap) {
  EXPECT_EQ(layout(128, 64, 8192).block_bytes_all_layers(), size_t{128} * 64 * 2 * 8192 * 128 * 2);
}

// [kv_head][K,V][token][head_dim], all of it and nothing else.
TEST(KvLayout, RowsTileTheBlock) {
  const KvBlockShape block{.num_kv_heads = 3, .head_dim = 16, .block_tokens = 32};
  size_t expected = 0;
  for (int32_t head = 0; head < block.num_kv_heads; ++head) {
    for (int32_t token = 0; token < block.block_tokens; ++token) {
      EXPECT_EQ(block.key_offset(head, token), expected);
      EXPECT_EQ(block.value_offset(head, token), expected + block.keys().bytes());
      expected += block.keys().token_bytes();
    }
    expected += block.keys().bytes();
  }
  EXPECT_EQ(block.block_bytes(), expected);
}

// What moves pages must know their layout; what only counts blocks need not.
TEST(KvLayout, ElementsBelongToTheShape) {
  const KvBlockShape block{.num_kv_heads = 3, .head_dim = 16, .block_tokens = 32};
  KvBlockShape page = block;
  page.block_tokens = 16;
  EXPECT_TRUE(page.has_rows_of(block));
  EXPECT_FALSE(page == block);
  page.element = static_cast<KvElement>(255);
  EXPECT_FALSE(page.has_rows_of(block));
}

TEST(KvLayout, BlocksForTokensRoundsUp) {
  EXPECT_EQ(blocks_for_tokens(0, 16), 0);
  EXPECT_EQ(blocks_for_tokens(1, 16), 1);
  EXPECT_EQ(blocks_for_tokens(16, 16), 1);
  EXPECT_EQ(blocks_for_tokens(17, 16), 2);
  EXPECT_EQ(blocks_for_tokens(int64_t{1} << 40, 8192), int64_t{1} << 27);
}

TEST(ValidateBlockTokens, AcceptsMultiplesOfTheTile) {
  for (int64_t size : {16, 32, 48, 64, 256, 1024, 4096, 8176, 8192}) {
    EXPECT_NO_THROW(validate_block_tokens(size)) << size;
  }
}

TEST(ValidateBlockTokens, NamesOptionValueAndRemedy) {
  for (int64_t size :
       {int64_t{-16}, int64_t{0}, int64_t{1}, int64_t{8}, int64_t{15}, int64_t{17}, int64_t{24},
        int64_t{100}, int64_t{8191}, int64_t{8193}, int64_t{8208}, (int64_t{1} << 32) + 16}) {
    try {
      validate_block_tokens(size);
      ADD_FAILURE() << "accepted " << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(error.message().find("block_size is " + std::to_string(size)), std::string::npos);
      EXPECT_NE(error.message().find("16 to 8192 tokens, in multiples of 16; try 256"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sluice
