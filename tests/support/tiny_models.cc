// Reading the golden files.
#include "support/tiny_models.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>

#include "core/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "support/source_dir.h"
#include "support/test_device.h"

namespace sluice::testing {
namespace {

std::filesystem::path models_dir() { return source_dir() / "tests/golden/models"; }

}  // namespace

std::vector<std::string> tiny_model_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(models_dir())) {
    const std::string name = entry.path().filename();
    const bool of_cpu_alone =
        name.find("-experts") != std::string::npos && !name.ends_with("-pair");
    if (entry.is_directory() && (testing_cpu() || !of_cpu_alone)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden read_golden(const std::string& model_name) {
  const auto directory = models_dir() / model_name;
  const nlohmann::json json = read_json_file(directory / "golden.json");
  Golden golden;
  golden.prompt = json.at("prompt").get<std::vector<int32_t>>();
  golden.greedy = json.value("greedy", std::vector<int32_t>());
  golden.margins = json.value("margins", std::vector<double>());
  golden.bf16_nmse = json.at("bf16_nmse").get<double>();
  const std::string file = read_file(directory / "golden.safetensors");
  const SafetensorsHeader header =
      parse_safetensors_header(std::as_bytes(std::span(file)), "golden.safetensors");
  const SafetensorsEntry& entry = header.tensors.at(0);
  golden.logits.resize((entry.end - entry.begin) / sizeof(float));
  std::memcpy(golden.logits.data(), file.data() + entry.begin, entry.end - entry.begin);
  return golden;
}

float near_tie_nats(const std::string& model_name) {
  constexpr double kLeast = 0.1;
  if (!std::filesystem::exists(models_dir() / model_name / "golden.json")) return kLeast;
  const Golden golden = read_golden(model_name);
  double power = 0;
  for (const float logit : golden.logits) power += double{logit} * double{logit};
  power /= static_cast<double>(golden.logits.size());
  return static_cast<float>(std::max(kLeast, 5 * std::sqrt(2 * golden.bf16_nmse * power)));
}

EngineOptions tiny_options(const std::string& model_name) {
  EngineOptions options;
  options.model = models_dir() / model_name;
  options.skip_tokenizer_init = true;
  options.device = test_device_spec();
  options.tensor_parallel_size = test_num_ranks();
  options.num_threads = 2;
  options.max_num_seqs = 16;
  options.kv.block_size = 16;
  options.kv.cache_bytes = 4 << 20;
  options.kv.offload = KvOffload::kOff;  // tests of other modes set it
  options.kv.device_bytes =
      0;  // no blocks stay on the device, also on a GPU that has room for them
  return options;
}

KvOffload kv_offload_named(std::string_view name) {
  const auto* found = std::find(std::begin(kKvOffloadNames), std::end(kKvOffloadNames), name);
  SLUICE_CHECK(found != std::end(kKvOffloadNames), "no mode {}", name);
  return static_cast<KvOffload>(found - std::begin(kKvOffloadNames));
}

EngineOptions with_offload(EngineOptions options, KvOffload mode) {
  options.kv.offload = mode;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = 2;
  options.kv.host_bytes = 16 << 20;
  options.kv.device_bytes = 0;
  return options;
}

std::vector<int32_t> random_tokens(int64_t count, uint64_t seed, int32_t vocab_size) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = 2 + static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size - 2));
  }
  return tokens;
}

}  // namespace sluice::testing
