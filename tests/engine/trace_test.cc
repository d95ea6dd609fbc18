// LLM::trace: names, shapes and bits of the captured tensors, and errors for patterns that match
// nothing.
#include "engine/trace.h"

#include <algorithm>
#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "sluice/llm.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::kTinyQwen;
using testing::random_tokens;
using testing::tiny_options;

constexpr int64_t kNumTokens = 50;  // not a multiple of the block of 16

using Shape = std::vector<int64_t>;

std::map<std::string, TapTensor> taps_by_name(const LLM::Trace& trace) {
  std::map<std::string, TapTensor> by_name;
  for (const TapTensor& tap : trace.taps) {
    EXPECT_TRUE(by_name.emplace(tap.name, tap).second) << tap.name << " twice";
  }
  return by_name;
}

LLM::Trace run_trace(const std::vector<std::string>& patterns, int32_t rows_per_pass = 16) {
  EngineOptions options = tiny_options(kTinyQwen);
  options.max_num_seqs = rows_per_pass;  // trace runs as many rows at once
  LLM llm(options);
  return llm.trace(random_tokens(kNumTokens, 3), patterns);
}

std::vector<std::string> names_of(const LLM::Trace& trace) {
  std::vector<std::string> names;
  for (const TapTensor& tap : trace.taps) names.push_back(tap.name);
  std::sort(names.begin(), names.end());
  return names;
}

void expect_same_bits(const TapTensor& a, const TapTensor& b) {
  ASSERT_EQ(a.shape, b.shape) << a.name;
  ASSERT_EQ(a.data.size(), b.data.size()) << a.name;
  EXPECT_EQ(std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(float)), 0) << a.name;
}

// Recorded taps are those of a trace, whose logits alone are left out.
TEST(Trace, RecordedTapsAreThoseOfATrace) {
  EngineOptions options = tiny_options(kTinyQwen);
  options.max_num_seqs = 16;
  options.enable_prefix_caching = false;
  LlmEngine engine(options, nullptr);
  const std::vector<std::string> patterns = {"layer.*.q", "layer.*.k"};
  const auto record = [&](const auto& run) {
    TraceRecorder recorder(patterns, engine.device());
    EXPECT_TRUE(run(recorder));
    return recorder.take();
  };
  const std::vector<int32_t> tokens = random_tokens(kNumTokens, 3);
  const auto traced = record(
      [&](TraceRecorder& recorder) { return !engine.solo().trace(tokens, recorder).empty(); });
  const auto recorded =
      record([&](TraceRecorder& recorder) { return engine.solo().record_taps(tokens, recorder); });
  ASSERT_EQ(traced.size(), 4u);
  ASSERT_EQ(recorded.size(), 4u);
  for (size_t i = 0; i < traced.size(); ++i) {
    EXPECT_EQ(traced[i].name, recorded[i].name);
    expect_same_bits(traced[i], recorded[i]);
  }
  TraceRecorder recorder(patterns, engine.device());
  PassWatch watch;
  watch.should_cancel = [] { return true; };
  EXPECT_FALSE(engine.solo().record_taps(tokens, recorder, watch));
  EXPECT_TRUE(engine.solo().record_taps(tokens, recorder)) << "the engine is free again";
}

TEST(Trace, EveryTapHasItsShape) {
  const LLM::Trace trace = run_trace({"*"});
  EXPECT_EQ(trace.logits.shape, (Shape{kNumTokens, 160}));
  const std::map<std::string, Shape> expected = {
      {"residual", {kNumTokens, 64}},    {"q", {kNumTokens, 4, 32}},
      {"k", {kNumTokens, 2, 32}},        {"v", {kNumTokens, 2, 32}},
      {"attn_out", {kNumTokens, 4, 32}}, {"attn_proj", {kNumTokens, 64}},
      {"mlp_out", {kNumTokens, 64}},
  };
  auto taps = taps_by_name(trace);
  for (const char* layer : {"layer.0.", "layer.1."}) {
    for (const auto& [what, shape] : expected) EXPECT_EQ(taps[layer + what].shape, shape) << what;
  }
  EXPECT_EQ(taps["embedding"].shape, (Shape{kNumTokens, 64}));
  EXPECT_EQ(taps["final_norm"].shape, (Shape{kNumTokens, 64}));
  for (const auto& [name, tap] : taps) {
    int64_t size = 1;
    for (const int64_t dim : tap.shape) size *= dim;
    EXPECT_EQ(tap.data.size(), static_cast<size_t>(size)) << name;
  }
}

// Sluice pads such heads; a trace must contain the model's channels alone.
TEST(Trace, PaddedHeadsHaveTheModelsChannels) {
  LLM llm(tiny_options("llama-heads8-tied"));  // 8 q and 4 kv heads of 8
  auto taps = taps_by_name(llm.trace(random_tokens(kNumTokens, 3), {"layer.1.*"}));
  EXPECT_EQ(taps["layer.1.q"].shape, (Shape{kNumTokens, 8, 8}));
  EXPECT_EQ(taps["layer.1.k"].shape, (Shape{kNumTokens, 4, 8}));
  EXPECT_EQ(taps["layer.1.v"].shape, (Shape{kNumTokens, 4, 8}));
  EXPECT_EQ(taps["layer.1.attn_out"].shape, (Shape{kNumTokens, 8, 8}));
  for (const char* what : {"q", "k", "v", "attn_out"}) {
    const std::vector<float>& values = taps[std::string("layer.1.") + what].data;
    EXPECT_EQ(std::count(values.begin(), values.end(), 0.0f), 0) << what;
  }
}

TEST(Trace, ListOfNamesIsWhatThereIs) {
  std::vector<std::string> expected = tap_names(std::vector<LayerSpec>(2));
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(names_of(run_trace({"*"})), expected);
}

// On a GPU products of another height round differently: bf16 keeps 8 bits, so a change of the last
// bit is an error of 4e-6 of the power; the bound allows for a few such roundings.
void expect_close(const TapTensor& a, const TapTensor& b) {
  ASSERT_EQ(a.shape, b.shape) << a.name;
  double error = 0, power = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double difference = double{a.data[i]} - b.data[i];
    error += difference * difference;
    power += double{a.data[i]} * a.data[i];
  }
  EXPECT_LE(error, 1e-4 * power) << a.name;
}

TEST(Trace, ChunkingChangesNoBit) {
  const LLM::Trace whole = run_trace({"*"}, 64);
  auto pieces = taps_by_name(run_trace({"*"}, 7));
  for (const TapTensor& tap : whole.taps) {
    if (testing::testing_cpu()) {
      expect_same_bits(tap, pieces[tap.name]);
    } else {
      expect_close(tap, pieces[tap.name]);
    }
  }
}

TEST(Trace, FirstResidualIsTheEmbedding) {
  auto taps = taps_by_name(run_trace({"embedding", "layer.0.residual"}));
  const TapTensor residual = taps["layer.0.residual"];
  expect_same_bits(residual, taps["embedding"]);
}

// Rope changes keys but not values: two equal tokens at two positions have equal values in layer 0
// and different keys.
TEST(Trace, KeysAreTakenAfterRope) {
  LLM llm(tiny_options(kTinyQwen));
  auto taps = taps_by_name(llm.trace({9, 9}, {"layer.0.[kv]"}));
  const std::vector<float>& k = taps["layer.0.k"].data;
  const std::vector<float>& v = taps["layer.0.v"].data;
  ASSERT_EQ(v.size(), 128u);
  EXPECT_TRUE(std::equal(v.begin(), v.begin() + 64, v.begin() + 64));
  EXPECT_FALSE(std::equal(k.begin(), k.begin() + 64, k.begin() + 64));
}

TEST(Trace, PatternsSelect) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of(run_trace({})), Names());
  EXPECT_EQ(names_of(run_trace({"layer.*.k"})), (Names{"layer.0.k", "layer.1.k"}));
  EXPECT_EQ(names_of(run_trace({"layer.1.attn_*", "final_norm"})),
            (Names{"final_norm", "layer.1.attn_out", "layer.1.attn_proj"}));
  EXPECT_EQ(names_of(run_trace({"layer.?.v", "layer.0.v"})), (Names{"layer.0.v", "layer.1.v"}));
}

TEST(Trace, PatternThatMatchesNothingIsNamed) {
  LLM llm(tiny_options(kTinyQwen));
  for (const char* pattern : {"layer.2.k", "layer.*.keys", "logits", ""}) {
    try {
      llm.trace({5, 6}, {"embedding", pattern});
      FAIL() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      const std::string quoted = "\"" + std::string(pattern) + "\"";
      EXPECT_NE(std::string(error.what()).find(quoted), std::string::npos) << error.what();
    }
  }
  // The engine still works.
  EXPECT_EQ(llm.trace({5, 6}, {}).logits.shape, (Shape{2, 160}));
}

}  // namespace
}  // namespace sluice
