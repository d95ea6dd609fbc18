// Damaged checkpoints with quantized weights: an error that names the tensor, soon and in little
// memory. The files are those of tests/golden, small enough for thousands of copies.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "io/expect_error.h"
#include "io/model_file.h"
#include "io/open_bounds.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "model/weights.h"
#include "ops/ops.h"
#include "support/source_dir.h"
#include "support/weight_copies.h"

namespace sluice {
namespace {

using testing::WrittenTensor;

class DamagedPacksTest : public ::testing::TestWithParam<const char*> {
 protected:
  DamagedPacksTest() {
    const std::filesystem::path golden = testing::source_dir() / "tests/golden" / GetParam();
    dir_.write("config.json", slurp(golden / "config.json"));
    file_ = slurp(golden / "model.safetensors");
    const ModelFile file(golden / "model.safetensors");
    for (const SafetensorsEntry& entry : read_safetensors_header(file).tensors) {
      tensors_.push_back({entry.name, *entry.dtype, entry.shape, {}});
      tensors_.back().bytes.resize(entry.end - entry.begin);
      file.read(entry.begin, tensors_.back().bytes);
    }
  }

  // The text of the error, empty if the checkpoint loads.
  std::string load() {
    std::string text;
    bounds_.run([&] {
      try {
        const ModelDirectory directory(dir_.path());
        Weights weights(read_model_config(directory), *device_);
        weights.load(Checkpoint(directory), *stream_);
      } catch (const Error& error) {
        text = error.what();
      }
    });
    return text;
  }

  // The same with the tensor changed, which is left out if it has no bytes then.
  template <typename Change>
  std::string load_with(const std::string& name, const Change& change) {
    std::vector<SafetensorsInput> inputs;
    WrittenTensor changed;
    for (const WrittenTensor& tensor : tensors_) {
      const bool is_changed = tensor.name == name;
      if (is_changed) {
        changed = tensor;
        change(changed);
        if (changed.bytes.empty()) continue;
      }
      const WrittenTensor& its = is_changed ? changed : tensor;
      inputs.push_back(
          {.name = its.name, .dtype = its.dtype, .shape = its.shape, .bytes = its.bytes});
    }
    write_safetensors(dir_.path() / "model.safetensors", inputs);
    return load();
  }

  // Where a tensor's bytes lie in the file.
  size_t data_begin() const {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file_.data(), sizeof header_bytes);
    return sizeof header_bytes + header_bytes;
  }

  TempDir dir_;
  std::string file_;  // model.safetensors
  std::vector<WrittenTensor> tensors_;
  std::unique_ptr<Device> device_ = make_device("cpu", {.num_threads = 1});
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "load", .num_threads = 1});
  testing::OpenBounds bounds_;
};

// GPTQ without desc_act does without its g_idx.
bool may_be_missing(std::string_view directory, std::string_view tensor) {
  return directory == "integers/gptq8" && tensor.ends_with(".g_idx");
}

TEST_P(DamagedPacksTest, WhatIsMissingOrOfAnotherShapeOrTypeIsNamed) {
  prepare_ops(*stream_);
  for (const WrittenTensor& tensor : tensors_) {
    const auto expect_named = [&](const char* what, const auto& change) {
      const std::string error = load_with(tensor.name, change);
      EXPECT_TRUE(contains(error, '"' + tensor.name + '"')) << what << ": " << error;
    };
    if (!may_be_missing(GetParam(), tensor.name)) {
      expect_named("missing", [](WrittenTensor& t) { t.bytes.clear(); });
    }
    // A row less, the same numbers in one dimension, and axes in the wrong order.
    expect_named("short", [](WrittenTensor& t) {
      t.bytes.resize(t.bytes.size() - t.bytes.size() / static_cast<size_t>(t.shape[0]));
      --t.shape[0];
      if (t.bytes.empty()) t.bytes.resize(dtype_bytes(t.dtype)), t.shape = {1, 1, 1};
    });
    expect_named("flat", [](WrittenTensor& t) { t.shape.insert(t.shape.begin(), {1, 1}); });
    if (tensor.shape.size() == 2 && tensor.shape[0] != tensor.shape[1]) {
      expect_named("turned", [](WrittenTensor& t) { std::swap(t.shape[0], t.shape[1]); });
    }
    expect_named("of another type", [](WrittenTensor& t) {
      t.bytes.resize(t.bytes.size() / dtype_bytes(t.dtype) * 4);
      t.dtype = t.dtype == DType::kI32 ? DType::kF32 : DType::kI32;
    });
  }
  bounds_.expect_met();
}

// What stands for no number, and groups that are not there or have too many columns.
TEST_P(DamagedPacksTest, ValuesThatMakeNoSenseAreNamed) {
  prepare_ops(*stream_);
  std::mt19937_64 random(3);
  const auto put = [&](size_t element_bytes, uint64_t value) {
    return [=, &random](WrittenTensor& t) {
      const size_t index = random() % (t.bytes.size() / element_bytes);
      std::memcpy(t.bytes.data() + index * element_bytes, &value, element_bytes);
    };
  };
  size_t num_tried = 0;
  const auto expect_named = [&](const std::string& name, const auto& change) {
    const std::string error = load_with(name, change);
    EXPECT_TRUE(contains(error, '"' + name + '"')) << error;
    ++num_tried;
  };
  for (const WrittenTensor& tensor : tensors_) {
    const std::string& name = tensor.name;
    const bool is_scale =
        name.ends_with("_scale") || name.ends_with("_scale_inv") || name.ends_with(".scales");
    if (is_scale && tensor.dtype == DType::kF32) {
      for (const uint32_t bits : {0u, 0x7f800000u, 0x7fc00000u}) expect_named(name, put(4, bits));
    } else if (is_scale) {
      const bool is_f16 = tensor.dtype == DType::kF16;
      expect_named(name, put(2, 0));
      expect_named(name, put(2, is_f16 ? 0x7c00 : 0x7f80));  // infinity
      expect_named(name, put(2, is_f16 ? 0xfe00 : 0xffc0));  // NaN
    } else if (tensor.dtype == DType::kE4m3) {
      expect_named(name, put(1, 0x7f));
      expect_named(name, put(1, 0xff));
    } else if (name.ends_with("g_idx")) {
      for (const int32_t group : {-1, 2, 1 << 30, INT32_MIN}) {
        expect_named(name, put(4, static_cast<uint32_t>(group)));
      }
      if (tensor.shape[0] <= 32) continue;       // one group
      expect_named(name, [](WrittenTensor& t) {  // all columns in the first group
        std::ranges::fill(t.bytes, std::byte{0});
      });
    } else if (name.ends_with("weight_shape")) {
      for (const int64_t size : {int64_t{0}, int64_t{-1}, INT64_MAX}) {
        expect_named(name, put(8, static_cast<uint64_t>(size)));
      }
    }
  }
  EXPECT_GT(num_tried, 20u);
  bounds_.expect_met();
}

// The name of a tensor on another one: one of both is missing, or has the wrong shape.
TEST_P(DamagedPacksTest, ExchangedTensorsAreNamed) {
  prepare_ops(*stream_);
  std::mt19937_64 random(4);
  size_t num_tried = 0;
  for (size_t i = 0; i < 4 * tensors_.size(); ++i) {
    const WrittenTensor& one = tensors_[i % tensors_.size()];
    const WrittenTensor& other = tensors_[random() % tensors_.size()];
    if (one.shape == other.shape && one.dtype == other.dtype) continue;
    const std::string error = load_with(one.name, [&](WrittenTensor& t) {
      t = other;
      t.name = one.name;
    });
    if (error.empty()) {  // vectors and scales may be of several types
      EXPECT_EQ(one.shape, other.shape) << one.name << ", " << other.name;
      continue;
    }
    EXPECT_TRUE(contains(error, '"' + one.name + '"')) << error;
    ++num_tried;
  }
  EXPECT_GT(num_tried, tensors_.size());
  bounds_.expect_met();
}

// Files that are cut, at every length of the header and at many of the data, name themselves. Of
// other damage to bytes nothing is known but that it ends: in an error, or in other numbers.
TEST_P(DamagedPacksTest, DamagedBytesEndSoon) {
  prepare_ops(*stream_);
  const size_t step = std::max<size_t>(1, data_begin() / 300);
  for (size_t length = 0; length < file_.size();
       length += length < data_begin() ? step : file_.size() / 50) {
    const auto path = dir_.write("model.safetensors", file_.substr(0, length));
    const std::string error = load();
    EXPECT_TRUE(contains(error, path.string())) << length << ": " << error;
  }
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = file_;
    const size_t end = i % 3 == 0 ? bytes.size() : data_begin();
    for (int change = 0; change < 3; ++change) {
      bytes[random() % end] = static_cast<char>(random());
    }
    dir_.write("model.safetensors", bytes);
    load();
  }
  bounds_.expect_met();
}

INSTANTIATE_TEST_SUITE_P(Files, DamagedPacksTest,
                         ::testing::Values("fp8/blocks_bf16", "fp8/channel", "fp8/tensor",
                                           "integers/packed4", "integers/packed8", "integers/awq",
                                           "integers/gptq", "integers/gptq8", "integers/gptq_v2"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
