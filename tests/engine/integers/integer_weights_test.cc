// Weights in integers of 4 and 8 bits, in the four forms of files: what is loaded stands for the
// numbers of the file, bit for bit, a model with them answers as one with these numbers, and
// nothing that the engine promises changes.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "sluice/inspect.h"
#include "support/integer_models.h"
#include "support/loaded_weights.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::columns_of;
using testing::expect_rows;
using testing::IntegerKind;
using testing::Job;
using testing::kind_name;
using testing::QuantizedModel;
using testing::write_integer_model;

constexpr auto kPacked = IntegerForm::kPackQuantized;
constexpr const char* kTinyModel = "qwen3-group2-tied";

std::vector<IntegerKind> all_kinds() {
  return {{.form = kPacked, .symmetric = true},
          {.form = kPacked},
          {.form = kPacked, .ordered = true},
          {.form = kPacked, .group = -1, .symmetric = true},
          {.form = kPacked, .bits = 8, .group = -1, .symmetric = true},
          {.form = kPacked, .bits = 8, .group = 64},
          {.form = IntegerForm::kAwq},
          {.form = IntegerForm::kAwq, .group = -1},
          {.form = IntegerForm::kGptq},
          {.form = IntegerForm::kGptq, .symmetric = true},
          {.form = IntegerForm::kGptq, .ordered = true},
          {.form = IntegerForm::kGptq, .bits = 8, .group = 64, .ordered = true},
          {.form = IntegerForm::kGptqV2, .group = -1},
          {.form = IntegerForm::kGptqV2, .ordered = true}};
}

// One of each form, and 8 bits: with an order where the form has one.
std::vector<IntegerKind> some_kinds() {
  return {{.form = kPacked, .symmetric = true},
          {.form = kPacked, .bits = 8, .group = 32},
          {.form = IntegerForm::kAwq},
          {.form = IntegerForm::kGptq, .ordered = true},
          {.form = IntegerForm::kGptqV2}};
}

// The weights of a directory on two threads.
struct Loaded {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Weights> weights;
};

Loaded load(const std::filesystem::path& path) {
  const ModelDirectory directory(path);
  Loaded loaded{.device = make_device("cpu", {.num_threads = 2})};
  loaded.stream = loaded.device->make_stream({.name = "load", .num_threads = 2});
  prepare_ops(*loaded.stream);
  loaded.weights = std::make_unique<Weights>(read_model_config(directory), *loaded.device);
  loaded.weights->load(Checkpoint(directory), *loaded.stream);
  return loaded;
}

// Compares a matrix with the weights `parts` of a file, whose rows lie in it one after the other.
void expect_parts(const Loaded& loaded, const PackedWeight& matrix, const QuantizedModel& model,
                  const std::vector<std::string>& parts) {
  const std::vector<float> columns = columns_of(matrix, *loaded.stream);
  int64_t row_begin = 0;
  for (const std::string& part : parts) {
    const std::vector<float>& weight = model.weights.at(part + ".weight");
    expect_rows(columns, matrix.num_rows, row_begin, weight, matrix.num_cols, part);
    row_begin += std::ssize(weight) / matrix.num_cols;
  }
  EXPECT_EQ(row_begin, matrix.num_rows);
  EXPECT_TRUE(stores_integers(matrix.format));
}

// Compares all matrices of a layer.
void expect_layer(const Loaded& loaded, int32_t layer, const QuantizedModel& model) {
  const std::string name = "model.layers." + std::to_string(layer) + ".";
  const LayerWeights& weights = loaded.weights->layer(LayerId(layer));
  const auto& attention = std::get<Attention::Weights>(weights.mixer);
  const auto& mlp = std::get<DenseMlp::Weights>(weights.mlp);
  const std::string self = name + "self_attn.";
  expect_parts(loaded, attention.qkv, model, {self + "q_proj", self + "k_proj", self + "v_proj"});
  expect_parts(loaded, attention.o, model, {self + "o_proj"});
  expect_parts(loaded, mlp.gate_up, model, {name + "mlp.gate_proj", name + "mlp.up_proj"});
  expect_parts(loaded, mlp.down, model, {name + "mlp.down_proj"});
}

TEST(IntegerWeights, LoadedNumbersAreThoseOfTheFile) {
  for (const IntegerKind& kind : all_kinds()) {
    SCOPED_TRACE(kind_name(kind));
    const TempDir dir;
    const QuantizedModel model = write_integer_model(kTinyModel, kind, dir.path());
    const Loaded loaded = load(dir.path());
    for (int32_t layer = 0; layer < 2; ++layer) expect_layer(loaded, layer, model);
  }
}

// Each expert has scales of its own. Experts of 24 rows go without an order.
TEST(IntegerWeights, LoadedExpertsAreThoseOfTheFile) {
  for (IntegerKind kind : some_kinds()) {
    kind.ordered = false;
    SCOPED_TRACE(kind_name(kind));
    const TempDir dir;
    const QuantizedModel model = write_integer_model("qwen3moe-experts8-pair", kind, dir.path());
    const Loaded loaded = load(dir.path());
    const auto& mlp = std::get<ExpertMlp::Weights>(loaded.weights->layer(LayerId(2)).mlp);
    EXPECT_FALSE(has_scales(mlp.router.format));
    for (int32_t e = 0; e < 8; ++e) {
      const std::string name = "model.layers.2.mlp.experts." + std::to_string(e) + ".";
      expect_parts(loaded, mlp.gate_up.expert(e), model, {name + "gate_proj", name + "up_proj"});
      expect_parts(loaded, mlp.down.expert(e), model, {name + "down_proj"});
    }
  }
}

EngineOptions options_of(const TempDir& dir) {
  EngineOptions options = testing::tiny_options(kTinyModel);
  options.model = dir.path();
  options.device = testing::test_device_spec();
  return options;
}

std::vector<Job> jobs() {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back({testing::random_tokens(50 + 40 * static_cast<int64_t>(i), i),
                    testing::sampled(24, static_cast<int64_t>(i))});
  }
  return jobs;
}

// Alone or together and in chunks of any length, which a GPU does not promise, and wherever KV is.
TEST(IntegerWeights, RowsDoNotDependOnEachOtherNorOnThePlaceOfKv) {
  for (const IntegerKind& kind : some_kinds()) {
    SCOPED_TRACE(kind_name(kind));
    const TempDir dir;
    write_integer_model(kTinyModel, kind, dir.path());
    const std::vector<RequestOutput> together = testing::run_engine(options_of(dir), jobs());
    if (testing::testing_cpu()) {
      EngineOptions alone = options_of(dir);
      alone.max_num_seqs = 1;
      testing::expect_all_same(testing::run_engine(alone, jobs()), together, "alone");
      EngineOptions chunked = options_of(dir);
      chunked.max_num_batched_tokens = 32;
      testing::expect_all_same(testing::run_engine(chunked, jobs()), together, "chunks of 32");
    }
    for (const char* mode : {"chunked", "layerwise"}) {
      const EngineOptions offloaded =
          testing::with_offload(options_of(dir), testing::kv_offload_named(mode));
      testing::expect_all_same(testing::run_engine(offloaded, jobs()), together, mode);
    }
  }
}

// The logits of a text: those of integers are near those of their numbers in F32, which loading
// rounds to bf16, and not those of the model that was quantized. Padded heads go with whole rows.
TEST(IntegerWeights, AnswersAreThoseOfTheirNumbers) {
  constexpr size_t kNumTokens = 60;
  const auto compare = [](const std::string& name, const IntegerKind& kind) {
    SCOPED_TRACE(name + ", " + kind_name(kind));
    const TempDir quantized, plain;
    const QuantizedModel model = write_integer_model(name, kind, quantized.path());
    testing::write_plain_model(name, model, plain.path());
    const auto logits = [&](const std::filesystem::path& path) {
      EngineOptions options = testing::tiny_options(name);
      options.model = path;
      options.device = testing::test_device_spec();
      LlmEngine engine(options, nullptr);
      TraceRecorder recorder({}, engine.device());
      return engine.solo().trace(testing::random_tokens(kNumTokens, 1), recorder, {});
    };
    const std::vector<float> answer = logits(quantized.path());
    EXPECT_LT(testing::median_nmse(answer, logits(plain.path()), kNumTokens), 1e-3);
    const double least = kind.bits == 4 ? 1e-3 : 1e-6;
    EXPECT_GT(testing::nmse(answer, logits(testing::tiny_options(name).model)), least);
  };
  for (const IntegerKind& kind : all_kinds()) compare(kTinyModel, kind);
  compare("qwen3-heads22-untied", {.form = kPacked, .group = -1});
  for (IntegerKind kind : some_kinds()) {
    kind.ordered = false;
    compare("qwen3moe-experts8-pair", kind);
  }
  compare("llama-heads8-tied", {.form = kPacked, .bits = 8, .group = -1, .symmetric = true});
}

// ---- Bytes ------------------------------------------------------------------------------------

// A number takes its bits, a row and group five bytes, an order four bytes a column.
TEST(IntegerWeights, ThePlanCountsTheirBytes) {
  const auto bytes_of = [](const IntegerKind& kind) {
    const TempDir dir;
    write_integer_model(kTinyModel, kind, dir.path());
    const ModelConfig config = read_model_config(ModelDirectory(dir.path()));
    const auto device = make_device("cpu", {.num_threads = 1});
    return Weights::stored_bytes(config, *device).all;
  };
  const TempDir plain;
  const ModelConfig config =
      read_model_config(ModelDirectory(testing::tiny_options(kTinyModel).model));
  const auto device = make_device("cpu", {.num_threads = 1});
  const size_t bf16 = Weights::stored_bytes(config, *device).all;
  struct Matrix {
    size_t n, k;
  };
  size_t changed = 0, four = 0, order = 0;
  for (const Matrix& m : {Matrix{128, 64}, Matrix{64, 64}, Matrix{64, 64}, Matrix{64, 128},
                          Matrix{96, 64}, Matrix{96, 64}, Matrix{64, 96}}) {
    changed += 2 * m.n * m.k;
    four += m.n * m.k / 2 + m.n * m.k / 32 * 5;
    order += m.k * 4;
  }
  EXPECT_EQ(bytes_of({.form = IntegerForm::kAwq}), bf16 - 2 * changed + 2 * four);
  EXPECT_EQ(bytes_of({.form = IntegerForm::kGptq, .ordered = true}),
            bf16 - 2 * changed + 2 * (four + order));
}

// ---- Errors -----------------------------------------------------------------------------------

// Writes model.safetensors again, changed; a tensor without bytes is left out.
void change_file(const TempDir& dir,
                 const std::function<void(std::vector<testing::WrittenTensor>&)>& change) {
  std::vector<testing::WrittenTensor> tensors;
  const std::filesystem::path path = dir.path() / "model.safetensors";
  {
    const ModelFile file(path);
    for (const SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
      tensors.push_back({entry.name, *entry.dtype, entry.shape, {}});
      tensors.back().bytes.resize(entry.end - entry.begin);
      file.read(entry.begin, tensors.back().bytes);
    }
  }
  change(tensors);
  std::vector<SafetensorsInput> inputs;
  for (const auto& t : tensors) {
    if (t.bytes.empty()) continue;
    inputs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .bytes = t.bytes});
  }
  write_safetensors(path, inputs);
}

// The error of loading a model, which is the same on every device that takes its format.
std::string load_error(const TempDir& dir, ErrorCode code = ErrorCode::kModel) {
  EngineOptions options = options_of(dir);
  options.device = "cpu";
  return expect_error(code, [&] { LlmEngine engine(options, nullptr); });
}

// The error of a file in which one tensor was changed.
std::string error_after(const IntegerKind& kind, const std::string& tensor,
                        const std::function<void(testing::WrittenTensor&)>& change) {
  const TempDir dir;
  write_integer_model(kTinyModel, kind, dir.path());
  change_file(dir, [&](std::vector<testing::WrittenTensor>& tensors) {
    change(*std::ranges::find(tensors, tensor, &testing::WrittenTensor::name));
  });
  return load_error(dir);
}

template <typename Value>
auto put(size_t index, Value value) {
  return [=](testing::WrittenTensor& tensor) {
    std::memcpy(tensor.bytes.data() + index * sizeof(Value), &value, sizeof(Value));
  };
}

TEST(IntegerWeights, MissingTensorsAreNamed) {
  const std::string module = "model.layers.1.mlp.down_proj";
  const auto remove = [](testing::WrittenTensor& tensor) { tensor.bytes.clear(); };
  for (const char* suffix : {".qweight", ".scales", ".qzeros", ".g_idx"}) {
    const IntegerKind kind{.form = IntegerForm::kGptq, .ordered = true};
    EXPECT_TRUE(contains(error_after(kind, module + suffix, remove), module + suffix)) << suffix;
  }
  for (const char* suffix : {".weight_packed", ".weight_scale", ".weight_zero_point",
                             ".weight_shape", ".weight_g_idx"}) {
    const IntegerKind kind{.form = kPacked, .ordered = true};
    EXPECT_TRUE(contains(error_after(kind, module + suffix, remove), module + suffix)) << suffix;
  }
}

TEST(IntegerWeights, WrongTensorsAreNamed) {
  const std::string module = "model.layers.1.mlp.down_proj";
  const auto expect = [&](const IntegerKind& kind, const std::string& suffix, const auto& change,
                          const std::string& what) {
    const std::string error = error_after(kind, module + suffix, change);
    EXPECT_TRUE(contains(error, module + suffix)) << error;
    EXPECT_TRUE(contains(error, what)) << error;
  };
  const IntegerKind gptq{.form = IntegerForm::kGptq, .ordered = true};
  const IntegerKind packed{.form = kPacked};
  expect(gptq, ".scales", put<uint16_t>(5, 0), "is finite and not 0");
  expect(gptq, ".scales", put<uint16_t>(5, 0x7e00), "is finite and not 0");       // NaN
  expect(packed, ".weight_scale", put<uint16_t>(5, 0x7f80), "finite and not 0");  // infinity
  expect(gptq, ".g_idx", put<int32_t>(3, 3), "into group 3");
  expect(gptq, ".g_idx", put<int32_t>(3, -1), "into group -1");
  expect(packed, ".weight_shape", put<int64_t>(0, 96), "is not [64, 96]");
  const auto reshape = [](testing::WrittenTensor& tensor) {
    std::swap(tensor.shape[0], tensor.shape[1]);
  };
  expect(gptq, ".qweight", reshape, "has shape [64, 12]");
  expect({.form = IntegerForm::kAwq}, ".qzeros", reshape, "has shape [8, 3]");
  const auto retype = [](testing::WrittenTensor& tensor) { tensor.dtype = DType::kF32; };
  expect(packed, ".weight_packed", retype, "is F32");
}

// Groups of scattered columns, of which the configuration does not know.
TEST(IntegerWeights, AnUnexpectedOrderIsNamed) {
  const TempDir dir;
  json config = testing::integer_config({.form = IntegerForm::kGptq});
  write_integer_model(kTinyModel, {.form = IntegerForm::kGptq, .ordered = true}, dir.path(),
                      {{"quantization_config", config}});
  const std::string error = load_error(dir);
  EXPECT_TRUE(contains(error, "g_idx\" orders columns")) << error;
}

// A panel of 16 rows has one order of columns.
TEST(IntegerWeights, AnOrderAtTheMiddleOfAPanelIsRefused) {
  const TempDir dir;
  write_integer_model("qwen3moe-experts8-pair", {.form = IntegerForm::kGptq, .ordered = true},
                      dir.path());
  const std::string error = load_error(dir, ErrorCode::kUnsupported);
  EXPECT_TRUE(contains(error, "up_proj.weight begins at row 24")) << error;
}

// AutoGPTQ writes a bias of zeros for each module; another has no place.
TEST(IntegerWeights, OnlyABiasOfZerosIsIgnored) {
  for (const float value : {0.0f, 0.5f}) {
    const TempDir dir;
    write_integer_model(kTinyModel, {.form = IntegerForm::kGptq}, dir.path());
    change_file(dir, [&](std::vector<testing::WrittenTensor>& tensors) {
      std::vector<float> bias(64);
      bias[40] = value;
      tensors.push_back(
          {"model.layers.1.mlp.down_proj.bias", DType::kF32, {64}, testing::bytes_of(bias)});
    });
    const auto start = [&] { LlmEngine engine(options_of(dir), nullptr); };
    if (value == 0) {
      EXPECT_NO_THROW(start());
    } else {
      EXPECT_TRUE(contains(expect_error(ErrorCode::kModel, start), "mlp.down_proj.bias"));
    }
  }
}

// A planned machine has no GPU that a kernel could run on.
TEST(IntegerWeights, AGpuTakesEveryKind) {
  const PlannedMachine machine{.gpu_bytes = size_t{24} << 30, .host_bytes = size_t{64} << 30};
  for (const IntegerKind& kind : all_kinds()) {
    const TempDir dir;
    write_integer_model(kTinyModel, kind, dir.path());
    EXPECT_TRUE(plan_memory(options_of(dir), machine).fits) << kind_name(kind);
  }
}

// Dummy weights have the format of the configuration, and answers that are finite.
TEST(IntegerWeights, DummyWeightsRun) {
  for (const IntegerKind& kind : some_kinds()) {
    const TempDir dir;
    write_integer_model(kTinyModel, kind, dir.path());
    EngineOptions options = options_of(dir);
    options.load_format = LoadFormat::kDummy;
    EXPECT_EQ(testing::run_engine(options, jobs()).size(), jobs().size());
  }
}

}  // namespace
}  // namespace sluice
