// dual_chunk_attention_config: what is read_chunk of it, and sizes that contradict each other.
#include "model/dual_chunk.h"

#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "core/error.h"
#include "io/json.h"
#include "io/json_type.h"
#include "model/model_config.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

using nlohmann::json;

DualChunk read_chunk(const json& dual_chunk) {
  const json config = {{"dual_chunk_attention_config", dual_chunk}};
  return read_dual_chunk(JsonObject(config, "config.json"));
}

// As Qwen2.5-7B-Instruct-1M writes it, and with what vLLM takes where a size is missing.
TEST(DualChunk, HasTheSizesOfTheFile) {
  const DualChunk of_1m = read_chunk(
      {{"chunk_size", 262144}, {"local_size", 8192}, {"original_max_position_embeddings", 262144}});
  EXPECT_EQ(of_1m.chunk_tokens(), 253952);
  EXPECT_EQ(of_1m.original_positions, 262144);
  EXPECT_EQ(of_1m.chunks(RopeZone::kBefore).factor_from, 262144);
  EXPECT_EQ(read_chunk({{"chunk_size", 8192}}).chunk_tokens(), 7168);
  const json none = json::object();
  EXPECT_FALSE(read_dual_chunk(JsonObject(none, "config.json")).present());
}

// Qwen3-30B-A3B-2507's 1M configuration: the shape of a mixture of experts, with the key.
TEST(DualChunk, IsReadOfAMixtureOfExperts) {
  json config = read_json_file(testing::source_dir() / "models/shapes/qwen3-30b-a3b/config.json");
  config["max_position_embeddings"] = 1010000;
  config["rope_theta"] = 10000000;
  config["dual_chunk_attention_config"] = {
      {"chunk_size", 131072}, {"local_size", 4096}, {"original_max_position_embeddings", 131072}};
  const std::string text = config.dump();
  const ModelConfig model = parse_model_config({.config = text});
  EXPECT_EQ(model.dual_chunk,
            (DualChunk{.chunk_size = 131072, .local_size = 4096, .original_positions = 131072}));
  EXPECT_EQ(model.dual_chunk.chunk_tokens(), 126976);
  EXPECT_EQ(model.max_position_embeddings, 1010000);
  EXPECT_TRUE(std::holds_alternative<ExpertMlp>(model.layers.back().mlp));
}

TEST(DualChunk, RefusesSizesThatContradictEachOther) {
  for (const json& wrong :
       {json{{"local_size", 5}}, json{{"chunk_size", 64}, {"local_size", 64}},
        json{{"chunk_size", 512}},
        json{{"chunk_size", 8192}, {"original_max_position_embeddings", 100}}}) {
    EXPECT_THROW(read_chunk(wrong), Error) << wrong;
  }
}

}  // namespace
}  // namespace sluice
