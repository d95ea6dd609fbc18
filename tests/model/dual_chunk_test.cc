// dual_chunk_attention_config: what is read of it, and sizes that contradict each other.
#include "model/dual_chunk.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace sluice {
namespace {

using nlohmann::json;

DualChunk read(const json& dual_chunk) {
  const json config = {{"dual_chunk_attention_config", dual_chunk}};
  return read_dual_chunk(JsonObject(config, "config.json"));
}

// As Qwen2.5-7B-Instruct-1M writes it, and with what vLLM takes where a size is missing.
TEST(DualChunk, HasTheSizesOfTheFile) {
  const DualChunk of_1m = read(
      {{"chunk_size", 262144}, {"local_size", 8192}, {"original_max_position_embeddings", 262144}});
  EXPECT_EQ(of_1m.chunk_tokens(), 253952);
  EXPECT_EQ(of_1m.original_positions, 262144);
  EXPECT_EQ(read({{"chunk_size", 8192}}).chunk_tokens(), 7168);
  const json none = json::object();
  EXPECT_FALSE(read_dual_chunk(JsonObject(none, "config.json")).present());
}

TEST(DualChunk, RefusesSizesThatContradictEachOther) {
  for (const json& wrong :
       {json{{"local_size", 5}}, json{{"chunk_size", 64}, {"local_size", 64}},
        json{{"chunk_size", 512}},
        json{{"chunk_size", 8192}, {"original_max_position_embeddings", 100}}}) {
    EXPECT_THROW(read(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace sluice
