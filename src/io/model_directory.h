// ModelDirectory and Checkpoint: a Hugging Face directory, or a GGUF file in its place, and the
// tensors of its weight files.
//
// Used by the model configuration, the weight loader, the tokenizer and `inspect`.
// Thread rule: both are immutable after construction and may be read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "io/gguf/gguf_weights.h"
#include "io/model_file.h"

namespace sluice {

// Where a model's files are: a directory with config.json, or a GGUF file, which holds all of them
// (the first of several). Its constructor checks that it is there and reads no file.
class ModelDirectory {
 public:
  // `path` is a directory, a GGUF file or, if there is none, the name of a repository in the
  // Hugging Face cache (io/hub_cache.h). A directory without config.json and with one GGUF model
  // stands for its file.
  //
  // Errors: kModel naming the path when it is absent, is neither of both, or has no config.json;
  // what is there in its place (GGUF files, an adapter) is named.
  explicit ModelDirectory(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // Whether path() is a GGUF file. It then has no files beside it.
  bool is_gguf() const { return is_gguf_; }
  bool has_tokenizer() const { return is_gguf_ || find_file("tokenizer.json"); }
  std::filesystem::path config_path() const { return is_gguf_ ? path_ : path_ / "config.json"; }
  // A file that a model may have or not: generation_config.json, tokenizer_config.json.
  // Errors: those of model_file_exists.
  std::optional<std::filesystem::path> find_file(std::string_view name) const;
  // A file that must be there. Errors: kModel naming directory and file.
  std::filesystem::path require_file(std::string_view name) const;

 private:
  std::filesystem::path path_;
  bool is_gguf_ = false;
};

// A tensor of weights in a file. Those of GGUF files read as F32, whatever they are stored in.
//
// Aliasing: name, shape and file belong to the Checkpoint.
struct CheckpointTensor {
  std::string_view name;
  DType dtype = DType::kBF16;  // kBF16, kF16, kF32 or that of quantized_tensor
  std::span<const int64_t> shape;
  size_t num_bytes = 0;  // of the elements as `dtype`
  const ModelFile* file = nullptr;
  uint64_t file_offset = 0;              // of the first byte; any, since old files have no padding
  uint64_t num_file_bytes = 0;           // other than num_bytes only if `storage` is set
  const GgufStorage* storage = nullptr;  // of GGUF: what becomes F32 when it is read
  // Of a part of a tensor (`part`), in bytes of the elements as `dtype`.
  size_t part_begin = 0;
  size_t row_bytes = 0;   // of a row of the part; 0: its rows follow each other
  size_t row_stride = 0;  // of the whole tensor; with row_bytes

  // Rows [row_begin, row_begin + num_rows) and columns likewise of a matrix of `num_columns`
  // columns; `shape` stays that of the whole tensor. REQUIRES: within the tensor, which is no part.
  struct Range {
    int64_t begin = 0;
    int64_t count = 0;
  };
  CheckpointTensor part(int64_t num_columns, Range rows, Range columns) const;

  // Reads bytes [offset, offset + dst.size()) of the tensor or part. Errors: those of
  // ModelFile::read. REQUIRES: whole elements.
  void read(size_t offset, std::span<std::byte> dst) const;
  // Of GGUF: the blocks of all rows of the tensor or part, as the file has them. REQUIRES: whole
  // blocks, and no tiled columns. Errors: those of ModelFile::read.
  std::vector<std::byte> read_blocks() const;
  // Starts read-ahead of all bytes; returns at once.
  void will_need() const;

 private:
  void read_whole(size_t offset, std::span<std::byte> dst) const;
  // Errors: kModel naming the tensor.
  void require_finite(std::span<const float> elements) const;
};

// The weight files of a model: GGUF, model.safetensors, or the shards of
// model.safetensors.index.json. As in transformers, the single file wins when both are there; a
// warning says so.
//
// Headers are checked on construction and no tensor is read.
class Checkpoint {
 public:
  // Errors: kModel naming file and tensor: no weights; an index that is not an object of names to
  // shards; a shard name that leaves the directory; a missing, empty or truncated shard; a tensor
  // that the index has and its shard lacks, that a shard has and the index lacks, or that two
  // shards have; and all of ModelFile, read_safetensors_header and GgufFile. kUnsupported naming a
  // tensor of a GGUF file that has no place in a Hugging Face checkpoint.
  explicit Checkpoint(const ModelDirectory& directory);

  // All tensors' names, sorted. Those of a nested text model are those of the model alone: "model."
  // stands for "model.language_model.".
  std::vector<std::string> names() const;
  bool has(std::string_view name) const;
  // Of all tensors as they are read.
  uint64_t num_bytes() const { return num_bytes_; }
  // Bytes of the files by type of tensor: {"Q4_K", 73 MB}, ...
  std::map<std::string, uint64_t> bytes_by_type() const;
  // What is suspicious about the files but no error, one sentence each.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // A tensor that must be there in the shape given.
  //
  // Errors: kModel naming the tensor when it is missing or has another shape (with both shapes);
  // kUnsupported naming tensor and type when it is not BF16, F16 or F32, and the method when other
  // tensors show that the weights are quantized.
  CheckpointTensor tensor(std::string_view name, std::span<const int64_t> shape) const;
  // The same for one of quantized weights (WeightQuantization), which is kE4m3, kI32 or kI64.
  // Errors: also kModel for another type.
  CheckpointTensor quantized_tensor(std::string_view name, std::span<const int64_t> shape,
                                    DType dtype) const;
  // The same as `tensor` for one of scales, which may also be F8_E8M0: bytes b of 2^(b - 127), kU8.
  CheckpointTensor scale_tensor(std::string_view name, std::span<const int64_t> shape) const;
  // The shape of a tensor; nothing if it is missing.
  std::optional<std::span<const int64_t>> shape_of(std::string_view name) const;

  // Errors: kModel naming up to three tensors that are in the files but not in `expected`.
  void require_only(std::span<const std::string> expected) const;

  // Errors: kModel if a file has changed since it was opened (ModelFile::require_unchanged).
  void require_unchanged() const;

 private:
  // The place and type of one tensor, from the header of its file.
  struct Entry {
    size_t file = 0;     // index in files_
    uint64_t begin = 0;  // bytes [begin, end) of the file
    uint64_t end = 0;
    std::string dtype_name;  // as in the file
    std::optional<DType> dtype;
    std::vector<int64_t> shape;
    std::optional<GgufStorage> storage = {};
  };

  using NamedEntry = std::map<std::string, Entry, std::less<>>::value_type;

  // The tensor if it has the shape. Errors: kModel as of `tensor`.
  const NamedEntry& find(std::string_view name, std::span<const int64_t> shape) const;
  CheckpointTensor describe(const NamedEntry& entry) const;
  void warn_of_stray_file(const ModelDirectory& directory);
  // Errors: kUnsupported if the names are those of a quantization; `what` is wrong with the tensor.
  void refuse_quantization(std::string_view tensor, std::string_view what) const;
  // Errors of both: those of the constructor.
  void add_file(const std::filesystem::path& path);
  void add_shards(const ModelDirectory& directory, const std::filesystem::path& index_path);
  void add_gguf(const std::filesystem::path& path);
  // Adds a tensor of the file that is opened next. Errors: kModel if there is one of this name.
  void add_tensor(const std::filesystem::path& path, const std::string& name, Entry entry);

  std::string_view described_by_ = "config.json";  // what shapes follow from
  std::vector<ModelFile> files_;  // open as long as this object, for reading tensors
  std::map<std::string, Entry, std::less<>> entries_;
  uint64_t num_bytes_ = 0;  // of all tensors
  std::vector<std::string> warnings_;
};

// "[3, 128]", for error texts and listings. After eight dimensions, more than any weight has, only
// the number of the others is printed.
std::string shape_string(std::span<const int64_t> shape);

}  // namespace sluice
