// Reads the list of keys and the list of tensors; values stay bytes until they are asked for.
#include "io/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"
#include "io/gguf/gguf_reader.h"

namespace sluice {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr uint64_t kMaxNameBytes = 65535;  // of the format's description
constexpr uint32_t kMaxDims = 4;           // GGML_MAX_DIMS
constexpr int64_t kMaxElements = int64_t{1} << 48;

std::string in_quotes(std::string_view name) { return fmt::format("\"{}\"", printable(name)); }

// Bytes of a number or bool; 0 for strings and lists, whose size differs.
size_t bytes_of(GgufValueType type) {
  constexpr size_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<size_t>(type)];
}

// A number at any address; the caller has checked that it is there.
template <typename T>
T load_at(const std::vector<char>& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The type of a key's value, or of the items of its list. Errors: kModel for a number without
// meaning.
GgufValueType read_type(GgufReader& reader, std::string_view key) {
  const auto type = reader.number<uint32_t>(key);
  if (type > static_cast<uint32_t>(GgufValueType::kF64)) {
    reader.fail(
        fmt::format("{} has values of type {}; types are 0 to 12, the file is damaged", key, type));
  }
  return static_cast<GgufValueType>(type);
}

// The dimensions of a tensor, outermost first, and the number of its elements.
void read_shape(GgufReader& reader, const std::string& what, GgufTensor& tensor) {
  const auto num_dims = reader.number<uint32_t>(what);
  if (num_dims < 1 || num_dims > kMaxDims) {
    reader.fail(
        fmt::format("{} has {} dimensions; 1 to {} are possible", what, num_dims, kMaxDims));
  }
  tensor.num_elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    const auto dim = reader.number<uint64_t>(what);
    if (dim < 1 || dim > static_cast<uint64_t>(kMaxElements / tensor.num_elements)) {
      reader.fail(
          fmt::format("{} has a dimension of {}; a tensor has 1 to 2^48 elements", what, dim));
    }
    tensor.num_elements *= static_cast<int64_t>(dim);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
}

// The type of a tensor whose shape is known. A type without a decoder ends loading here: its size
// is unknown too, so nothing after it could be checked. Errors: kUnsupported naming it; kModel if a
// row is not made of whole blocks.
const GgufType* read_tensor_type(GgufReader& reader, const ModelFile& file, const std::string& what,
                                 const GgufTensor& tensor) {
  const auto id = reader.number<uint32_t>(what);
  const GgufType* type = find_gguf_type(id);
  if (type == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{} is {}; Sluice reads {}: take a Q4_K_M, Q5_K_M, Q6_K or Q8_0 file of "
                    "the model",
                    what, gguf_type_name(id), gguf_type_names()),
        file.path().string());
  }
  if (tensor.shape.back() % type->block_elements != 0) {
    reader.fail(fmt::format("{} has rows of {} elements; those of {} are a multiple of {}", what,
                            tensor.shape.back(), type->name, type->block_elements));
  }
  return type;
}

// Errors: kModel if two tensors share bytes.
void refuse_overlaps(const GgufReader& reader, const std::vector<GgufTensor>& tensors) {
  std::vector<const GgufTensor*> sorted;
  sorted.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) sorted.push_back(&tensor);
  std::ranges::sort(sorted, {}, &GgufTensor::begin);
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->begin < sorted[i - 1]->end) {
      reader.fail(fmt::format("tensors {} and {} share bytes; the file is damaged, fetch it again",
                              in_quotes(sorted[i - 1]->name), in_quotes(sorted[i]->name)));
    }
  }
}

}  // namespace

// Fills a GgufFile from the front.
class GgufFile::Reader {
 public:
  explicit Reader(GgufFile& gguf) : gguf_(gguf), reader_(gguf.file_, gguf.header_) {}

  void read() {
    const auto [num_tensors, num_keys] = read_counts();
    for (uint64_t i = 0; i < num_keys; ++i) read_key(i);
    std::set<std::string_view> names;
    gguf_.tensors_.reserve(num_tensors);  // names in the set stay where they are
    for (uint64_t i = 0; i < num_tensors; ++i) {
      read_tensor(i);
      if (!names.insert(gguf_.tensors_.back().name).second) {
        reader_.fail(
            fmt::format("tensor {} is there twice", in_quotes(gguf_.tensors_.back().name)));
      }
    }
    place_tensors();
  }

 private:
  // Checks magic and version. Returns the numbers of tensors and keys.
  std::pair<uint64_t, uint64_t> read_counts() {
    const size_t at = reader_.take(kMagic.size(), "the magic");
    if (std::string_view(gguf_.header_.data() + at, kMagic.size()) != kMagic) {
      reader_.fail("the file does not begin with \"GGUF\"; it is another format or damaged");
    }
    const auto version = reader_.number<uint32_t>("the version");
    if (version != 2 && version != 3) {
      const bool is_big_endian = version != 0 && version % 65536 == 0;
      throw Error(ErrorCode::kUnsupported,
                  is_big_endian
                      ? "the file is big-endian; take the little-endian one"
                      : fmt::format("GGUF version {} is not supported; 2 and 3 are, which "
                                    "llama.cpp has written since August 2023",
                                    version),
                  gguf_.name());
    }
    const auto num_tensors = reader_.number<uint64_t>("the number of tensors");
    const auto num_keys = reader_.number<uint64_t>("the number of keys");
    require_count("tensors", num_tensors, kMaxGgufTensors);
    require_count("keys", num_keys, kMaxGgufKeys);
    return {num_tensors, num_keys};
  }

  // A count is judged before anything is reserved for it. Errors: kModel.
  void require_count(std::string_view what, uint64_t count, uint64_t max) const {
    constexpr uint64_t kLeastBytes = 13;  // an empty name, a type and a value of one byte
    if (count <= max && count <= reader_.num_left() / kLeastBytes) return;
    reader_.fail(
        fmt::format("the file has {} {} by its header; {} bytes follow, and at most {} are "
                    "read; it is damaged, fetch it again",
                    count, what, reader_.num_left(), max));
  }

  // Notes where the value is, and checks that all of it is in the file.
  void read_key(uint64_t index) {
    const std::string key(reader_.string(fmt::format("key {}", index), kMaxNameBytes));
    const std::string what = "key " + in_quotes(key);
    Value value{.type = read_type(reader_, what)};
    if (value.type == GgufValueType::kArray) {
      value.is_list = true;
      value.type = read_type(reader_, what);
      value.count = reader_.number<uint64_t>(what);
    }
    if (value.type == GgufValueType::kArray) {
      throw Error(ErrorCode::kUnsupported, what + " is a list of lists; no key of a model is one",
                  gguf_.name());
    }
    value.begin = reader_.position();
    skip_items(what, value);
    if (!gguf_.values_.emplace(key, value).second) reader_.fail(what + " is there twice");
  }

  // Texts differ in length, so a list of them has to be walked; numbers are skipped at once.
  void skip_items(const std::string& what, const Value& value) {
    const bool is_string = value.type == GgufValueType::kString;
    const size_t least_bytes = is_string ? sizeof(uint64_t) : bytes_of(value.type);
    if (value.count > reader_.num_left() / least_bytes) {
      reader_.fail(
          fmt::format("{} is a list of {} items, but {} bytes follow; the file is cut or "
                      "damaged, fetch it again",
                      what, value.count, reader_.num_left()));
    }
    if (!is_string) {
      reader_.take(value.count * least_bytes, what);
      return;
    }
    for (uint64_t i = 0; i < value.count; ++i) reader_.string(what, kMaxGgufHeaderBytes);
  }

  // The alignment is a key that may follow in any order, so places are computed at the end.
  void read_tensor(uint64_t index) {
    GgufTensor& tensor = gguf_.tensors_.emplace_back();
    tensor.name = reader_.string(fmt::format("tensor {}", index), kMaxNameBytes);
    const std::string what = "tensor " + in_quotes(tensor.name);
    read_shape(reader_, what, tensor);
    tensor.type = read_tensor_type(reader_, gguf_.file_, what, tensor);
    tensor.begin = reader_.number<uint64_t>(what);  // from the start of the data
  }

  // Turns offsets into places of the file.
  void place_tensors() {
    const auto alignment =
        static_cast<uint64_t>(gguf_.find_int(kAlignmentKey, 1, 1 << 20).value_or(32));
    if (!std::has_single_bit(alignment)) gguf_.fail(kAlignmentKey, "a power of two");
    const uint64_t data = (reader_.position() + alignment - 1) / alignment * alignment;
    const uint64_t file_bytes = gguf_.file_.num_bytes();
    for (GgufTensor& tensor : gguf_.tensors_) {
      const uint64_t offset = tensor.begin;
      const uint64_t num_bytes = static_cast<uint64_t>(tensor.num_elements) /
                                 static_cast<uint64_t>(tensor.type->block_elements) *
                                 tensor.type->block_bytes;
      const bool fits = data <= file_bytes && num_bytes <= file_bytes - data &&
                        offset <= file_bytes - data - num_bytes;
      if (!fits || offset % alignment != 0) {
        reader_.fail(
            fmt::format("tensor {} has {} bytes at {} of the data, which begins at {} of "
                        "{}{}; the file is cut or damaged, fetch it again",
                        in_quotes(tensor.name), num_bytes, offset, data, file_bytes,
                        fits ? fmt::format(", and is aligned to {}", alignment) : ""));
      }
      tensor.begin = data + offset;
      tensor.end = tensor.begin + num_bytes;
    }
    refuse_overlaps(reader_, gguf_.tensors_);
  }

  GgufFile& gguf_;
  GgufReader reader_;
};

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) { Reader(*this).read(); }

// A search over all names: a model has some hundreds, and each is asked for once.
const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = std::ranges::find(tensors_, name, &GgufTensor::name);
  return found == tensors_.end() ? nullptr : &*found;
}

std::vector<std::string> GgufFile::keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

// For keys that a model cannot be loaded without. Their absence is the file's fault, and another
// file of the same model mostly has them.
const GgufFile::Value& GgufFile::require(std::string_view key) const {
  if (const Value* value = find(key)) return *value;
  throw Error(ErrorCode::kModel,
              fmt::format("the metadata has no {}; fetch another file of the model", key), name());
}

// Writers differ in the width and sign that they give to the same key, so all of them are read.
// Nothing for other types, and above 2^63.
std::optional<int64_t> GgufFile::integer_at(GgufValueType type, size_t at) const {
  switch (type) {
    case GgufValueType::kU8:
      return load_at<uint8_t>(header_, at);
    case GgufValueType::kI8:
      return load_at<int8_t>(header_, at);
    case GgufValueType::kU16:
      return load_at<uint16_t>(header_, at);
    case GgufValueType::kI16:
      return load_at<int16_t>(header_, at);
    case GgufValueType::kU32:
      return load_at<uint32_t>(header_, at);
    case GgufValueType::kI32:
      return load_at<int32_t>(header_, at);
    case GgufValueType::kI64:
      return load_at<int64_t>(header_, at);
    case GgufValueType::kU64: {
      const auto value = load_at<uint64_t>(header_, at);
      if (std::in_range<int64_t>(value)) return static_cast<int64_t>(value);
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

// An integer is a number, too: some writers store a scale of 1 as one.
std::optional<double> GgufFile::number_at(GgufValueType type, size_t at) const {
  if (type == GgufValueType::kF32) return load_at<float>(header_, at);
  if (type == GgufValueType::kF64) return load_at<double>(header_, at);
  const std::optional<int64_t> integer = integer_at(type, at);
  return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

// A value as it appears in an error. Of a list the length alone: a vocabulary has 150,000 items.
std::string GgufFile::describe(const Value& value) const {
  if (value.is_list) return fmt::format("a list of {}", value.count);
  if (value.type == GgufValueType::kBool) return header_[value.begin] != 0 ? "true" : "false";
  if (value.type == GgufValueType::kString) {
    const auto size = static_cast<size_t>(load_at<uint64_t>(header_, value.begin));
    return in_quotes(std::string_view{header_.data() + value.begin + sizeof(uint64_t), size});
  }
  if (const auto integer = integer_at(value.type, value.begin)) return fmt::format("{}", *integer);
  const auto number = number_at(value.type, value.begin);
  return number ? fmt::format("{}", *number) : "above 2^63";
}

void GgufFile::fail(std::string_view key, std::string_view allowed) const {
  const Value* value = find(key);
  throw Error(ErrorCode::kModel,
              fmt::format("{} is {}; it must be {}", key,
                          value != nullptr ? describe(*value) : "missing", allowed),
              name());
}

// Limits are the caller's, since it knows what the number is for: sizes are multiplied later, and
// must not overflow there.
std::optional<int64_t> GgufFile::find_int(std::string_view key, int64_t min, int64_t max) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = value->is_list ? std::nullopt : integer_at(value->type, value->begin);
  if (!number || *number < min || *number > max) {
    fail(key, fmt::format("an integer from {} to {}", min, max));
  }
  return number;
}

std::optional<double> GgufFile::find_double(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto number = value->is_list ? std::nullopt : number_at(value->type, value->begin);
  if (!number) fail(key, "a number");
  return number;
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_list || value->type != GgufValueType::kBool) fail(key, "true or false");
  return header_[value->begin] != 0;
}

std::optional<std::string> GgufFile::find_string(std::string_view key) const {
  const Value* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_list || value->type != GgufValueType::kString) fail(key, "a text");
  return std::string(get_strings(key).front());
}

int64_t GgufFile::get_int(std::string_view key, int64_t min, int64_t max) const {
  require(key);
  return *find_int(key, min, max);
}

double GgufFile::get_double(std::string_view key) const {
  require(key);
  return *find_double(key);
}

std::string GgufFile::get_string(std::string_view key) const {
  require(key);
  return *find_string(key);
}

// Numbers of a list, or one number as a list of one. Every item is judged before it is used.
std::vector<int64_t> GgufFile::get_ints(std::string_view key, int64_t min, int64_t max) const {
  const Value& value = require(key);
  const std::string allowed = fmt::format("integers from {} to {}, at most 2^22", min, max);
  if (value.type == GgufValueType::kString || value.count > kMaxGgufListItems) fail(key, allowed);
  std::vector<int64_t> numbers;
  numbers.reserve(value.count);
  for (uint64_t i = 0; i < value.count; ++i) {
    const size_t at = value.begin + i * bytes_of(value.type);
    const auto number = value.type == GgufValueType::kBool
                            ? std::optional<int64_t>(header_[at] != 0)
                            : integer_at(value.type, at);
    if (!number || *number < min || *number > max) fail(key, allowed);
    numbers.push_back(*number);
  }
  return numbers;
}

// Views into the header, which the file keeps: the texts of a vocabulary are several megabytes and
// would be copied once more by the tokenizer.
std::vector<std::string_view> GgufFile::get_strings(std::string_view key) const {
  const Value& value = require(key);
  if (value.type != GgufValueType::kString || value.count > kMaxGgufListItems) {
    fail(key, "a list of at most 2^22 texts");
  }
  std::vector<std::string_view> texts;
  texts.reserve(value.count);
  size_t at = value.begin;
  for (uint64_t i = 0; i < value.count; ++i) {
    const auto size = static_cast<size_t>(load_at<uint64_t>(header_, at));
    at += sizeof(uint64_t);
    texts.emplace_back(header_.data() + at, size);
    at += size;
  }
  return texts;
}

}  // namespace sluice
