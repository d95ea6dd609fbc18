// Whole models with dual chunk attention against a program of double precision that shares no step
// with the engine (tools/golden/make_dual_chunk_golden.py): logits of a prompt of four chunks, and
// steps of decode across every border.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/dual_chunk/dual_chunk_config.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "sluice/llm.h"
#include "support/loaded_weights.h"
#include "support/source_dir.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::nmse;

constexpr size_t kVocab = 160;

// A prompt that ends two tokens before a border, and what follows.
struct Continuation {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::vector<float> logits;  // of each step, [steps, vocab]
};

struct DualChunkGolden {
  testing::ChunkSizes sizes;
  std::vector<int32_t> prompt;
  std::vector<size_t> rows;   // of the prompt, whose logits are kept
  std::vector<float> logits;  // [rows, vocab]
  double bf16_nmse = 0;       // of these logits, of that program in bf16
  double plain_nmse = 0;      // of plain attention
  std::vector<Continuation> continuations;
};

std::map<std::string, std::vector<float>> read_floats(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::map<std::string, std::vector<float>> tensors;
  for (const auto& entry :
       parse_safetensors_header(std::as_bytes(std::span(file)), path.string()).tensors) {
    std::vector<float>& values = tensors[entry.name];
    values.resize((entry.end - entry.begin) / sizeof(float));
    std::memcpy(values.data(), file.data() + entry.begin, entry.end - entry.begin);
  }
  return tensors;
}

DualChunkGolden read_dual_golden(const std::string& name) {
  const auto base = testing::source_dir() / "tests/golden/dual_chunk";
  const nlohmann::json json = read_json_file(base / (name + ".json"));
  auto tensors = read_floats(base / (name + ".safetensors"));
  DualChunkGolden golden{.sizes = {.chunk = json.at("chunk_size"),
                                   .local = json.at("local_size"),
                                   .original = json.at("original_max_position_embeddings")},
                         .prompt = json.at("prompt").get<std::vector<int32_t>>(),
                         .rows = json.at("rows").get<std::vector<size_t>>(),
                         .logits = tensors.at("logits"),
                         .bf16_nmse = json.at("bf16_nmse"),
                         .plain_nmse = json.at("plain_nmse"),
                         .continuations = {}};
  auto step = tensors.at("steps").begin();
  for (const nlohmann::json& of : json.at("continuations")) {
    Continuation one{.prompt = of.at("prompt").get<std::vector<int32_t>>(),
                     .greedy = of.at("greedy").get<std::vector<int32_t>>(),
                     .logits = {}};
    const auto end = step + std::ssize(one.greedy) * static_cast<int64_t>(kVocab);
    one.logits.assign(step, end);
    step = end;
    golden.continuations.push_back(std::move(one));
  }
  return golden;
}

// Natural logs of the shares of one row of logits.
std::vector<float> log_softmax(std::span<const float> logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  std::vector<float> out;
  for (const float logit : logits) out.push_back(static_cast<float>(logit - std::log(sum)));
  return out;
}

class DualChunkGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  DualChunkGoldenTest() : golden_(read_dual_golden(GetParam())) {}

  EngineOptions options() const { return options_with(golden_.sizes); }
  // A chunk of 0: without the key.
  EngineOptions options_with(const testing::ChunkSizes& sizes) const {
    EngineOptions options = testing::tiny_options(GetParam());
    testing::copy_model(options, dir_.path(), [&](nlohmann::json& config) {
      if (sizes.chunk == 0) return;
      config["dual_chunk_attention_config"] = testing::dual_chunk_json(sizes);
    });
    return options;
  }

  // Of the rows that the golden file has.
  std::vector<float> logits_of(const EngineOptions& options) const {
    const std::vector<float> all = LLM(options).trace(golden_.prompt, {}).logits.data;
    std::vector<float> kept;
    for (const size_t row : golden_.rows) {
      const auto begin = all.begin() + static_cast<int64_t>(row * kVocab);
      kept.insert(kept.end(), begin, begin + static_cast<int64_t>(kVocab));
    }
    return kept;
  }

  const DualChunkGolden golden_;
  const TempDir dir_;  // of the model that the last options name
};

// Of few rows, so the bound is twice the error of the same arithmetic in bf16.
TEST_P(DualChunkGoldenTest, LogitsMatchDoublePrecision) {
  const double error = nmse(logits_of(options()), golden_.logits);
  EXPECT_LT(error, 2 * golden_.bf16_nmse);
  std::printf("%s: NMSE %.2e; in bf16 %.2e; plain attention %.2e\n", GetParam(), error,
              golden_.bf16_nmse, golden_.plain_nmse);
}

// Otherwise the comparison would say nothing. Without the key the engine is as far away as the
// program is; in a mixture some rows then choose between experts that are nearly tied.
TEST_P(DualChunkGoldenTest, PlainAttentionIsFarAway) {
  EXPECT_GT(golden_.plain_nmse, 50 * golden_.bf16_nmse);
  EXPECT_NEAR(nmse(logits_of(options_with({})), golden_.logits), golden_.plain_nmse,
              golden_.plain_nmse / 3);
}

// Chunks of the same keys whose queries stand one token further away, and a factor of longer texts.
TEST_P(DualChunkGoldenTest, OtherQueriesAreFarAway) {
  testing::ChunkSizes further = golden_.sizes, longer = golden_.sizes;
  ++further.chunk;
  ++further.local;
  longer.original *= 2;
  for (const testing::ChunkSizes& sizes : {further, longer}) {
    EXPECT_GT(nmse(logits_of(options_with(sizes)), golden_.logits), 10 * golden_.bf16_nmse);
  }
}

// Wherever KV is, prompts in chunks that end anywhere.
TEST_P(DualChunkGoldenTest, DecodeCrossesEveryBorder) {
  const int64_t chunk_tokens = golden_.sizes.chunk - golden_.sizes.local;
  for (const char* mode : {"off", "chunked", "layerwise"}) {
    EngineOptions options = this->options();
    if (mode != std::string("off")) {
      options = testing::with_offload(options, testing::kv_offload_named(mode));
    }
    LLM llm(options);
    std::vector<float> got, expected;  // the largest log-probabilities of all steps
    for (const Continuation& one : golden_.continuations) {
      SamplingParams params;
      params.temperature = 0;
      params.ignore_eos = true;
      params.logprobs = 20;
      params.max_tokens = static_cast<int32_t>(one.greedy.size());
      const int64_t length = std::ssize(one.prompt);
      ASSERT_LT(length / chunk_tokens, (length + params.max_tokens - 1) / chunk_tokens);
      const RequestOutput output = llm.generate({one.prompt}, params).at(0);
      // None of these choices is a near tie.
      EXPECT_EQ(output.token_ids, one.greedy) << mode << ", after " << length;
      for (size_t i = 0; i < output.logprobs.size(); ++i) {
        const auto row = log_softmax(std::span(one.logits).subspan(i * kVocab, kVocab));
        for (const TokenLogprob& top : output.logprobs[i]) {
          got.push_back(top.logprob);
          expected.push_back(row.at(static_cast<size_t>(top.token_id)));
        }
      }
    }
    EXPECT_GE(got.size(), golden_.continuations.size() * 5 * 20);
    EXPECT_LT(nmse(got, expected), 2 * golden_.bf16_nmse) << mode;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DualChunkGoldenTest,
                         ::testing::Values("qwen2-group7-tied", "qwen3moe-experts8-pair"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
