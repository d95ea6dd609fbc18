// GgufFile: the metadata and the list of tensors of one GGUF file, checked.
//
// Versions 2 and 3, little-endian. Used by Checkpoint, the tokenizer and the model configuration,
// which read the keys that they need. No tensor is read here.
//
// A file is, without padding up to the data:
//   "GGUF", u32 version, u64 number of tensors, u64 number of keys;
//   each key: text, u32 type, value. A text is u64 length and bytes; a list is u32 type of its
//   items, u64 count, items;
//   each tensor: text name, u32 number of dimensions, u64 dimensions with the innermost first, u32
//   type, u64 offset in the data;
//   the data, from the next multiple of general.alignment (32) on, where each tensor begins.
// Every number is checked against the bytes that the file still has before anything is taken for
// it, so a damaged file costs no more than its own size.
// Source: ggml's docs/gguf.md, and gguf.GGUFReader.
// Thread rule: immutable after construction; may be read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf/gguf_blocks.h"
#include "io/model_file.h"

namespace sluice {

// Limits, far beyond published files; they bound memory and time of opening any file.
inline constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{64} << 20;  // metadata and tensor list
inline constexpr uint64_t kMaxGgufKeys = uint64_t{1} << 16;
inline constexpr uint64_t kMaxGgufTensors = uint64_t{1} << 17;
inline constexpr uint64_t kMaxGgufListItems = uint64_t{1} << 22;  // of a list that is read

// The types of values of metadata, by their numbers in files.
enum class GgufValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

struct GgufTensor {
  std::string name;
  const GgufType* type;
  std::vector<int64_t> shape;  // outermost first, the reverse of the file's order
  int64_t num_elements = 0;
  uint64_t begin = 0;  // bytes [begin, end) of the file
  uint64_t end = 0;
};

class GgufFile {
 public:
  // Reads everything before the tensors' bytes. Cost: memory of the metadata, at most
  // kMaxGgufHeaderBytes, and twice that for a moment.
  //
  // Errors: those of ModelFile; kModel naming file and key or tensor for a wrong magic, a count,
  // length or size beyond the file or a limit, a name given twice, an unknown type of value, a bad
  // alignment or shape, tensors that overlap or end behind the file; kUnsupported for version 1,
  // big-endian files, lists of lists, and tensors of types without a decoder.
  explicit GgufFile(const std::filesystem::path& path);

  const ModelFile& file() const { return file_; }
  ModelFile take_file() && { return std::move(file_); }
  std::string name() const { return file_.path().string(); }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;

  // Typed getters. find_x gives nothing for an absent key, get_x throws. Integers of every width
  // are integers; a floating-point number may be an integer, too.
  // Errors: kModel naming file, key, value and what is allowed.
  bool has(std::string_view key) const { return values_.contains(key); }
  std::vector<std::string> keys() const;  // sorted
  std::optional<int64_t> find_int(std::string_view key, int64_t min, int64_t max) const;
  std::optional<double> find_double(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  int64_t get_int(std::string_view key, int64_t min, int64_t max) const;
  double get_double(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  // Lists; one number counts as a list of one, and true as 1. Strings point into this object.
  std::vector<int64_t> get_ints(std::string_view key, int64_t min, int64_t max) const;
  std::vector<std::string_view> get_strings(std::string_view key) const;

  // Throws kModel: "file: key is <value>; it must be <allowed>".
  [[noreturn]] void fail(std::string_view key, std::string_view allowed) const;

 private:
  // Where a value is. It stays bytes until it is asked for: most keys never are, and the lists of a
  // tokenizer have hundreds of thousands of texts.
  struct Value {
    GgufValueType type;  // of the items of a list
    bool is_list = false;
    uint64_t count = 1;
    size_t begin = 0;  // in header_
  };
  class Reader;

  const Value* find(std::string_view key) const;
  const Value& require(std::string_view key) const;
  // The number at a place, if it is an integer that fits; a double for every number.
  std::optional<int64_t> integer_at(GgufValueType type, size_t at) const;
  std::optional<double> number_at(GgufValueType type, size_t at) const;
  std::string describe(const Value& value) const;

  ModelFile file_;
  std::vector<char> header_;
  std::map<std::string, Value, std::less<>> values_;
  std::vector<GgufTensor> tensors_;  // in the file's order
};

}  // namespace sluice
