// Random model shapes: each config.json either runs, with the same bits resident and offloaded, or
// is refused with an Error. Nothing may abort.
#include <algorithm>
#include <random>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/sampling/sampler.h"
#include "io/temp_dir.h"
#include "support/run_bits.h"
#include "support/seeds.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

struct ModelShape {
  std::string architecture = "LlamaForCausalLM";
  int32_t hidden = 64;
  int32_t intermediate = 96;
  int32_t layers = 1;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 16;
  int32_t vocab = 160;
  bool tied = true;

  std::string config() const {
    return fmt::format(
        R"({{"architectures":["{}"],"hidden_size":{},"intermediate_size":{},"num_hidden_layers":{},
"num_attention_heads":{},"num_key_value_heads":{},"head_dim":{},"vocab_size":{},
"max_position_embeddings":512,"rms_norm_eps":1e-5,"tie_word_embeddings":{}}})",
        architecture, hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, tied);
  }
};

// Random sizes, multiples of 1, 4 or 16; large ones are rare.
class Shapes {
 public:
  explicit Shapes(uint64_t seed) : random_(seed) {}

  ModelShape draw() {
    constexpr const char* kArchitectures[] = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                              "Qwen3ForCausalLM"};
    ModelShape shape;
    shape.architecture = kArchitectures[below(3)];
    shape.hidden = size(200);
    shape.intermediate = size(300);
    shape.layers = 1 + below(3);
    shape.kv_heads = 1 + below(4);
    shape.heads = shape.kv_heads * (1 + below(4));
    shape.head_dim = size(below(8) == 0 ? 258 : 80);
    if (below(8) != 0) shape.head_dim += shape.head_dim % 2;  // odd ones are refused
    shape.vocab = 2 + (below(4) == 0 ? size(30) : size(400));
    shape.tied = below(2) == 0;
    return shape;
  }

 private:
  int32_t below(int32_t end) {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(end));
  }
  int32_t size(int32_t most) {
    const int32_t any = 1 + below(most);
    const int32_t step = 1 << (2 * below(3));  // 1, 4 or 16
    return std::max(1, any / step * step);
  }

  std::mt19937_64 random_;
};

// Runs a few tokens resident and offloaded; false where the shape is refused.
bool runs_alike(const ModelShape& shape) {
  TempDir directory;
  directory.write("config.json", shape.config());
  EngineOptions options = testing::tiny_options("");
  options.model = directory.path();
  options.load_format = LoadFormat::kDummy;
  options.max_num_seqs = 2;
  std::vector<testing::Job> jobs = {
      {testing::random_tokens(37, 1, shape.vocab), testing::sampled(3, 2)}};
  SamplingParams& params = jobs[0].params;
  if (shape.vocab < kMaxLogprobs) params.logprobs.reset();
  std::vector<RequestOutput> resident;
  try {
    resident = testing::run_engine(options, jobs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel) << error.what();
    return false;
  }
  EXPECT_EQ(resident[0].token_ids.size(), 3u);
  options.kv.cache_bytes.reset();
  options.kv.offload = KvOffload::kChunked;
  options.kv.host_bytes = 8 << 20;
  options.max_num_batched_tokens = 16;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 1;
  testing::expect_all_alike(resident, testing::run_engine(options, jobs), shape.config());
  return true;
}

TEST(RandomShapes, RunAlikeOrAreRefused) {
  const std::vector<uint64_t> seeds = testing::test_seeds(60);
  size_t num_run = 0;
  for (const uint64_t seed : seeds) {
    const ModelShape shape = Shapes(seed).draw();
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, shape.config()));
    num_run += runs_alike(shape) ? 1 : 0;
  }
  const size_t least = seeds.size() > 1 ? seeds.size() * 4 / 5 : 0;
  EXPECT_GE(num_run, least) << "the rest has odd heads";
}

// hidden 64, 8 heads of width 8, 4 KV heads, an MLP of 172: karpathy/tinyllamas' stories260K.
TEST(RealShapes, Stories260kRuns) {
  EXPECT_TRUE(runs_alike({.architecture = "LlamaForCausalLM",
                          .hidden = 64,
                          .intermediate = 172,
                          .layers = 5,
                          .heads = 8,
                          .kv_heads = 4,
                          .head_dim = 8,
                          .vocab = 512,
                          .tied = true}));
}

TEST(SmallVocabulary, HasNoLogprobs) {
  TempDir directory;
  directory.write("config.json", ModelShape{.vocab = 5}.config());
  EngineOptions options = testing::tiny_options("");
  options.model = directory.path();
  options.load_format = LoadFormat::kDummy;
  SamplingParams params;
  params.logprobs = 1;
  try {
    testing::run_engine(options, {{{2, 3}, params}});
    FAIL() << "it ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("logprobs is 1"), std::string::npos) << error.what();
  }
}

TEST(OddShapes, OfHeadsAreRefusedWithBothNumbers) {
  TempDir directory;
  directory.write("config.json", ModelShape{.head_dim = 258}.config());
  EngineOptions options = testing::tiny_options("");
  options.model = directory.path();
  options.load_format = LoadFormat::kDummy;
  try {
    testing::run_engine(options, {});
    FAIL() << "it ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_NE(std::string(error.what()).find("258"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("256"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sluice
