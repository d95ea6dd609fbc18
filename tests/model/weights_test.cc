// Loading weights: which types are read, and files that change while they are read.
#include "model/weights.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "device/device.h"
#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "ops/ops.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

const char* const kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
  "max_position_embeddings": 512, "num_attention_heads": 4, "num_hidden_layers": 2,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "vocab_size": 160})";

struct FileType {
  const char* name;
  size_t bits;
};

// All types that a file may have.
constexpr FileType kFileTypes[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64}};

// The tensors of a checkpoint of kConfig: names and shapes.
std::map<std::string, std::vector<int64_t>> tensors() {
  std::map<std::string, std::vector<int64_t>> all{{"model.embed_tokens.weight", {160, 64}},
                                                  {"model.norm.weight", {64}},
                                                  {"lm_head.weight", {160, 64}}};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string prefix = layer;
    all[prefix + "input_layernorm.weight"] = {64};
    all[prefix + "self_attn.q_proj.weight"] = {64, 64};
    all[prefix + "self_attn.k_proj.weight"] = {32, 64};
    all[prefix + "self_attn.v_proj.weight"] = {32, 64};
    all[prefix + "self_attn.o_proj.weight"] = {64, 64};
    all[prefix + "post_attention_layernorm.weight"] = {64};
    all[prefix + "mlp.gate_proj.weight"] = {96, 64};
    all[prefix + "mlp.up_proj.weight"] = {96, 64};
    all[prefix + "mlp.down_proj.weight"] = {64, 96};
  }
  return all;
}

class WeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("config.json", kConfig);
    device_ = make_device("cpu", {.num_threads = 2});
    stream_ = device_->make_stream({.name = "load", .num_threads = 2});
    prepare_ops(*stream_);
    weights_.emplace(parse_model_config({.config = kConfig}), *device_);
  }

  // Writes all tensors as zeros in BF16, but `name` in `type`. Returns the offset of the data: the
  // length field and the header.
  size_t write_weights(const std::string& name = "", FileType type = {"BF16", 16}) {
    std::string header = "{";
    size_t offset = 0;
    for (const auto& [tensor, shape] : tensors()) {
      const FileType its = tensor == name ? type : FileType{"BF16", 16};
      size_t elements = 1;
      for (const int64_t dim : shape) elements *= static_cast<size_t>(dim);
      const size_t end = offset + elements * its.bits / 8;
      header +=
          fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                      offset == 0 ? "" : ",", tensor, its.name, fmt::join(shape, ","), offset, end);
      offset = end;
    }
    header += "}";
    const uint64_t size = header.size();
    std::string file(reinterpret_cast<const char*>(&size), sizeof size);
    file += header;
    const size_t data_begin = file.size();
    file.resize(data_begin + offset);
    dir_.write("model.safetensors", file);
    return data_begin;
  }

  void load(const std::function<void(double)>& on_progress = nullptr) {
    weights_->load(Checkpoint(ModelDirectory(dir_.path())), *stream_, on_progress);
  }

  TempDir dir_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::optional<Weights> weights_;
};

TEST_F(WeightsTest, RefusesEveryTypeThatItDoesNotConvert) {
  for (const char* place : {"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight",
                            "model.layers.0.mlp.down_proj.weight"}) {
    for (const FileType type : kFileTypes) {
      write_weights(place, type);
      const std::string_view name = type.name;
      if (name == "BF16" || name == "F16" || name == "F32") {
        EXPECT_NO_THROW(load()) << place << " in " << name;
        continue;
      }
      EXPECT_TRUE(contains(expect_error(ErrorCode::kUnsupported, [&] { load(); }),
                           fmt::format("tensor \"{}\" is {}; convert the weights to BF16, F16 or "
                                       "F32",
                                       place, name)));
    }
  }
}

// Another program may truncate a file at any time: at every tensor, and to every length.
TEST_F(WeightsTest, AFileThatIsCutWhileItIsReadIsAnError) {
  const size_t header_bytes = write_weights();
  const fs::path path = dir_.path() / "model.safetensors";
  const size_t file_bytes = fs::file_size(path);
  const size_t num_tensors = tensors().size();
  for (const size_t cut_after : {size_t{1}, num_tensors / 2, num_tensors - 1, num_tensors}) {
    for (const size_t left : {size_t{0}, header_bytes, file_bytes / 2, file_bytes - 1}) {
      write_weights();
      size_t num_done = 0;
      const std::string text = expect_error(ErrorCode::kModel, [&] {
        load([&](double) {
          if (++num_done == cut_after) fs::resize_file(path, left);
        });
      });
      EXPECT_TRUE(contains(
          text, path.string() + " was c"));  // "cut", or "changed" when all bytes had been read
      EXPECT_TRUE(contains(text, "load again when nothing writes to it"));
      EXPECT_EQ(num_done < num_tensors, text.find("was cut") != text.npos) << text;
    }
  }
  write_weights();
  load();
  stream_->synchronize();
}

TEST_F(WeightsTest, AFileThatIsWrittenAgainWhileItIsReadIsAnError) {
  write_weights();
  const fs::path path = dir_.path() / "model.safetensors";
  fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kModel,
                                    [&] {
                                      load([&](double share) {
                                        if (share < 0.5) write_weights();
                                      });
                                    }),
                       "was changed while it was read"));
}

}  // namespace
}  // namespace sluice
