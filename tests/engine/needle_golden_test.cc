// The bundled model against transformers: logits at positions spread over a prompt of 1K and of 8K
// tokens, and the answer.
//
// Two ctest entries share this program, one for each length. The expected values were written by
// tools/golden/make_needle_golden.py.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include <gtest/gtest.h>

#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "sluice/llm.h"
#include "support/source_dir.h"
#include "support/test_device.h"

namespace sluice {
namespace {

const std::string kModelDir = testing::source_dir() / "models/needle";
const std::string kGoldenDir = testing::source_dir() / "tests/golden/needle/";
constexpr double kNearTieNats = 0.1;

struct NeedleGolden {
  std::string model_sha256;
  std::vector<int32_t> token_ids;
  std::vector<int64_t> positions;
  std::vector<float> logits;    // [positions, vocab], float32 oracle
  std::vector<int32_t> greedy;  // continuation, the end token included
  std::vector<double> margins;  // nats between the first and the second choice of each step
  double bf16_nmse = 0;         // error of transformers itself when it runs in bf16
};

template <typename T>
std::vector<T> read_tensor(const std::string& name) {
  const std::string file = read_file(kGoldenDir + "golden.safetensors");
  const SafetensorsHeader header =
      parse_safetensors_header(std::as_bytes(std::span(file)), "golden.safetensors");
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.name != name) continue;
    std::vector<T> values((entry.end - entry.begin) / sizeof(T));
    std::memcpy(values.data(), file.data() + entry.begin, entry.end - entry.begin);
    return values;
  }
  ADD_FAILURE() << "golden.safetensors has no tensor " << name;
  return {};
}

NeedleGolden read_needle_golden(const std::string& name) {
  const nlohmann::json json = read_json_file(kGoldenDir + "golden.json");
  NeedleGolden golden;
  golden.model_sha256 = json.at("model_sha256").get<std::string>();
  for (const nlohmann::json& prompt : json.at("prompts")) {
    if (prompt.at("name") != name) continue;
    golden.positions = prompt.at("positions").get<std::vector<int64_t>>();
    golden.greedy = prompt.at("greedy").get<std::vector<int32_t>>();
    golden.margins = prompt.at("margins").get<std::vector<double>>();
    golden.bf16_nmse = prompt.at("bf16_nmse").get<double>();
  }
  golden.token_ids = read_tensor<int32_t>(name + ".token_ids");
  golden.logits = read_tensor<float>(name + ".logits");
  return golden;
}

// Runs sha256sum; "" when that fails.
std::string sha256_of(const std::string& path) {
  const auto close = [](FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(
      popen(("sha256sum < '" + path + "'").c_str(), "r"), close);
  char hex[65] = {};
  if (pipe == nullptr || fread(hex, 1, 64, pipe.get()) != 64) return "";
  return hex;
}

class NeedleGoldenTest : public ::testing::TestWithParam<std::string> {};

TEST_P(NeedleGoldenTest, LogitsAndAnswerMatchTransformers) {
  const NeedleGolden golden = read_needle_golden(GetParam());
  ASSERT_EQ(sha256_of(kModelDir + "/model.safetensors"), golden.model_sha256)
      << "models/needle has other weights than those that tests/golden/needle was made from; run "
         "tools/golden/make_needle_golden.py";
  EngineOptions options;
  options.model = kModelDir;
  options.skip_tokenizer_init = true;  // ids in, ids out
  options.device = testing::test_device_spec();
  options.num_threads = 2;
  options.kv.offload = KvOffload::kOff;
  options.kv.cache_bytes = 64 << 20;
  LLM llm(options);

  const std::vector<float> logits = llm.trace(golden.token_ids, {}).logits.data;
  const size_t vocab_size = logits.size() / golden.token_ids.size();
  ASSERT_EQ(golden.logits.size(), golden.positions.size() * vocab_size);
  double error = 0, power = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    const auto pos = static_cast<size_t>(golden.positions[i / vocab_size]);
    const double expected = golden.logits[i];
    const double difference = logits[pos * vocab_size + i % vocab_size] - expected;
    error += difference * difference;
    power += expected * expected;
  }
  std::printf("%s: NMSE %.2e; transformers in bf16 %.2e\n", GetParam().c_str(), error / power,
              golden.bf16_nmse);
  EXPECT_LT(error / power, golden.bf16_nmse);  // false for NaN

  // The trace left its KV in the prefix cache, so only the end of the prompt is computed again.
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = static_cast<int32_t>(golden.greedy.size());
  const RequestOutput output = llm.generate({golden.token_ids}, params)[0];
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    if (i < output.token_ids.size() && output.token_ids[i] == golden.greedy[i]) continue;
    EXPECT_LE(golden.margins[i], kNearTieNats) << "token " << i << " differs without a near tie";
    break;  // from here on the contexts differ
  }
}

INSTANTIATE_TEST_SUITE_P(Prompts, NeedleGoldenTest, ::testing::Values("1k", "8k"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace sluice
