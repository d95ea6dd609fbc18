// The tiny random models of tests/golden/models and engines small enough for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/engine_options.h"

namespace sluice::testing {

// Two of them: one query head for each KV head, and two (2 layers, 4 query and 2 KV heads of 32,
// width 64).
inline constexpr const char* kTinyLlama = "llama-group1-default";
inline constexpr const char* kTinyQwen = "qwen3-group2-tied";

// Every model of tests/golden/models that the device under test runs, sorted: all families, rope
// variants and group sizes. Most of those with experts are too narrow for a GPU.
std::vector<std::string> tiny_model_names();

// Reference results of transformers for one model (tools/golden/make_model_golden.py), or for the
// quantized layer of an absolute path (tools/golden/quantized_layer.py), which has no continuation.
struct Golden {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;  // continuation of the prompt
  std::vector<double> margins;  // nats between the first and the second choice of each step
  std::vector<float> logits;    // [prompt, vocab], float32 oracle
  double bf16_nmse = 0;         // error of transformers itself when it runs in bf16
};
Golden read_golden(const std::string& model_name);

// How far log-probabilities of two runs in bf16 may lie apart that round in other places: five
// standard deviations by the golden file, and at least 0.1, which models without one have. Most
// models have .1, hybrids up to .5: a state carries roundings on from token to token.
float near_tie_nats(const std::string& model_name);

// Options of a small engine for that model on the device under test: a few megabytes, two threads.
EngineOptions tiny_options(const std::string& model_name);

// The mode of that name: "off", "chunked", "layerwise" or "auto".
KvOffload kv_offload_named(std::string_view name);

// The same engine with KV in host memory: a ring of few small slots, and no blocks that stay on the
// device.
EngineOptions with_offload(EngineOptions options, KvOffload mode);

// `count` token ids that are no end token, from `seed`.
std::vector<int32_t> random_tokens(int64_t count, uint64_t seed, int32_t vocab_size = 160);

}  // namespace sluice::testing
