// Checks the rules of the format in this order: sizes, JSON, each tensor, then the layout of all
// tensors.
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in files");

constexpr uint64_t kSizeBytes = 8;  // the header size in front of the header
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

// A type of the format; `dtype` is empty if Sluice has no use for it. F4 and F6 have fewer than 8
// bits, hence bits and not bytes.
struct OfficialDType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;
};

// In the order of the reference implementation, narrow to wide; the writer sorts tensors by it.
constexpr std::array<OfficialDType, 22> kOfficialDTypes = {{
    {"BOOL", 8, {}},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::kU8},
    {"I8", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E4M3", 8, DType::kE4m3},
    {"F8_E8M0", 8, DType::kU8},  // exponents of scales; numbers are in no such type
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I32", 32, DType::kI32},
    {"U32", 32, {}},
    {"F32", 32, DType::kF32},
    {"C64", 64, {}},
    {"F64", 64, {}},
    {"I64", 64, DType::kI64},
    {"U64", 64, {}},
}};

// Throws kModel with a formatted message; the file's name is the context.
template <typename... Args>
[[noreturn]] void fail_file(std::string_view name, fmt::format_string<Args...> format,
                            Args&&... args) {
  throw Error(ErrorCode::kModel, fmt::format(format, std::forward<Args>(args)...),
              std::string(name));
}

// The size of the header's text, from the first bytes of a file of `file_bytes`.
uint64_t header_size(std::span<const std::byte> first, uint64_t file_bytes, std::string_view name) {
  if (file_bytes < kSizeBytes) {
    fail_file(name,
              "has {} bytes, but safetensors start with 8 bytes of header size; fetch it again",
              file_bytes);
  }
  // Compared with the limit first: the text is allocated by this number.
  uint64_t size = 0;
  std::memcpy(&size, first.data(), kSizeBytes);
  if (size > kMaxSafetensorsHeaderBytes) {
    fail_file(name, "header size {} is over the format's limit of {}; is it a safetensors file?",
              size, kMaxSafetensorsHeaderBytes);
  }
  if (size > file_bytes - kSizeBytes) {
    fail_file(name, "header of {} bytes does not fit a file of {}; it is cut off, fetch it again",
              size, file_bytes);
  }
  return size;
}

// The entry of kOfficialDTypes for the tensor's "dtype". Errors: kModel if there is none.
const OfficialDType& find_dtype(const JsonObject& tensor) {
  const std::string name = tensor.get_string("dtype");
  for (const OfficialDType& official : kOfficialDTypes) {
    if (official.name == name) return official;
  }
  tensor.fail("dtype", "a type of the safetensors format, such as BF16, F16 or F32");
}

// A list of non-negative integers. find_ints alone would accept a single integer, too.
std::vector<int64_t> int_list(const JsonObject& tensor, std::string_view key) {
  if (!tensor.get(key).is_array()) tensor.fail(key, "a list of integers");
  return tensor.find_ints(key, 0, kInt64Max);
}

// Bytes of a tensor of this shape. Multiplies the dimensions in order and the type's bits last, as
// the reference does, so that the same shapes count as overflowing.
uint64_t shape_bytes(const JsonObject& tensor, std::span<const int64_t> shape, uint64_t bits) {
  uint64_t total = 1;
  bool overflow = false;
  for (int64_t dim : shape) {
    overflow |= __builtin_mul_overflow(total, static_cast<uint64_t>(dim), &total);
  }
  overflow |= __builtin_mul_overflow(total, bits, &total);
  if (overflow) {
    throw Error(ErrorCode::kModel, "shape overflows 64 bits; the file is damaged, fetch it again",
                tensor.name());
  }
  // Types of 4 and 6 bits may not fill their last byte.
  if (total % 8 != 0) {
    throw Error(ErrorCode::kModel,
                fmt::format("shape fills {} bits, which is no whole number of bytes; the "
                            "file is damaged, fetch it again",
                            total),
                tensor.name());
  }
  return total / 8;
}

// One tensor of the header. begin and end still count from the first data byte.
SafetensorsEntry parse_entry(const std::string& name, const JsonObject& tensor) {
  const OfficialDType& official = find_dtype(tensor);
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype_name = official.name;
  entry.dtype = official.dtype;
  entry.shape = int_list(tensor, "shape");
  const std::vector<int64_t> offsets = int_list(tensor, "data_offsets");
  if (offsets.size() != 2) tensor.fail("data_offsets", "a list of two integers");
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  if (entry.end < entry.begin) {
    throw Error(ErrorCode::kModel,
                fmt::format("data_offsets run backwards, from {} to {}; the file is damaged, "
                            "fetch it again",
                            entry.begin, entry.end),
                tensor.name());
  }
  const uint64_t bytes = shape_bytes(tensor, entry.shape, official.bits);
  if (bytes != entry.end - entry.begin) {
    throw Error(ErrorCode::kModel,
                fmt::format("shape and dtype need {} bytes, but data_offsets span {}; the "
                            "file is damaged, fetch it again",
                            bytes, entry.end - entry.begin),
                tensor.name());
  }
  return entry;
}

// The object __metadata__, which maps text to text.
std::map<std::string, std::string> parse_metadata(const JsonObject& metadata) {
  std::map<std::string, std::string> result;
  for (const std::string& key : metadata.keys()) {
    // Not get_string: its error would print the key unquoted.
    const nlohmann::json value = metadata.has(key) ? metadata.get(key) : nullptr;
    if (!value.is_string()) {
      fail_file(metadata.name(), "{} is {}; it must be a string, fetch the file again",
                describe_json(key), describe_json(value));
    }
    result[key] = value.get<std::string>();
  }
  return result;
}

// `tensors` are sorted by offset. They must cover [0, data_bytes) without gap or overlap.
void check_layout(const std::vector<SafetensorsEntry>& tensors, uint64_t data_bytes,
                  std::string_view name) {
  uint64_t reached = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    if (tensor.begin != reached) {
      fail_file(name, "tensor {} starts at data byte {}, {}; the file is damaged, fetch it again",
                describe_json(tensor.name), tensor.begin,
                tensor.begin < reached
                    ? fmt::format("inside the one before it, which ends at {}", reached)
                    : fmt::format("leaving a hole after {}", reached));
    }
    reached = tensor.end;
  }
  if (reached > data_bytes) {
    fail_file(name,
              "tensors need {} bytes of data, but the file has {}; it is cut off, fetch it "
              "again",
              reached, data_bytes);
  }
  if (reached < data_bytes) {
    fail_file(name, "{} bytes follow the last tensor; nothing may follow it, fetch the file again",
              data_bytes - reached);
  }
}

// Parses the header's text. Offsets of the result count from the start of the file.
SafetensorsHeader parse_header(std::string_view text, uint64_t file_bytes, std::string_view name) {
  // The format does not allow white space before the object.
  if (!text.starts_with('{')) {
    fail_file(name, "header does not start with '{{'; is it a safetensors file?");
  }
  const std::string header_name = fmt::format("{}: header", name);
  const nlohmann::json document = parse_json(text, header_name);
  SafetensorsHeader header;
  for (const auto& [key, value] : document.items()) {
    if (key == "__metadata__") {
      // Counts as absent, as in the reference parser.
      if (value.is_null()) continue;
      header.metadata = parse_metadata(JsonObject(value, header_name + ": __metadata__"));
      continue;
    }
    const JsonObject tensor(value, fmt::format("{}: tensor {}", name, describe_json(key)));
    header.tensors.push_back(parse_entry(key, tensor));
  }
  // By begin, then end: an empty tensor comes before the tensor that begins at the same byte.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const uint64_t data_begin = kSizeBytes + text.size();
  check_layout(header.tensors, file_bytes - data_begin, name);
  for (SafetensorsEntry& tensor : header.tensors) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  return header;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view name) {
  const uint64_t size = header_size(file, file.size(), name);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kSizeBytes, size);
  return parse_header(text, file.size(), name);
}

SafetensorsHeader read_safetensors_header(const ModelFile& file) {
  const std::string name = file.path().string();
  if (file.num_bytes() == 0) fail(ErrorCode::kModel, "{} is empty; fetch it again", name);
  std::array<std::byte, kSizeBytes> first{};
  // A shorter file is refused by header_size, which then does not read `first`.
  if (file.num_bytes() >= kSizeBytes) file.read(0, first);
  std::string text(header_size(first, file.num_bytes(), name), '\0');
  file.read(kSizeBytes, std::as_writable_bytes(std::span(text)));
  return parse_header(text, file.num_bytes(), name);
}

namespace {

// Index of the type in kOfficialDTypes; wider types have a larger rank.
size_t dtype_rank(DType dtype) {
  size_t rank = 0;
  while (kOfficialDTypes[rank].dtype != dtype) ++rank;
  return rank;
}

// `text` as a JSON string.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

// The header of tensors in file order, padded with spaces to a multiple of 8 bytes. Keys are
// written by hand, because nlohmann would sort them and the reference does not.
std::string render_header(std::span<const SafetensorsInput* const> tensors,
                          const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  uint64_t offset = 0;
  for (const SafetensorsInput* tensor : tensors) {
    if (header.size() > 1) header += ',';
    const uint64_t end = offset + tensor->bytes.size();
    header += fmt::format(R"({}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                          quoted(tensor->name), kOfficialDTypes[dtype_rank(tensor->dtype)].name,
                          nlohmann::json(tensor->shape).dump(), offset, end);
    offset = end;
  }
  header += '}';
  header.resize((header.size() + kSizeBytes - 1) / kSizeBytes * kSizeBytes, ' ');
  return header;
}

}  // namespace

std::string_view safetensors_dtype_name(DType dtype) {
  return kOfficialDTypes[dtype_rank(dtype)].name;
}

void write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsInput> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const SafetensorsInput*> ordered;
  for (const SafetensorsInput& tensor : tensors) {
    uint64_t bytes = dtype_bytes(tensor.dtype);
    for (int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
    SLUICE_CHECK(bytes == tensor.bytes.size(), "tensor {} has {} bytes, its shape needs {}",
                 tensor.name, tensor.bytes.size(), bytes);
    ordered.push_back(&tensor);
  }
  // The reference's order: wider types first, so that every tensor is aligned to its type, then
  // names.
  std::sort(ordered.begin(), ordered.end(), [](const auto* a, const auto* b) {
    return std::pair(dtype_rank(b->dtype), std::string_view(a->name)) <
           std::pair(dtype_rank(a->dtype), std::string_view(b->name));
  });
  // JSON cannot hold two equal keys, so names must differ.
  std::vector<std::string_view> names;
  for (const SafetensorsInput* tensor : ordered) names.push_back(tensor->name);
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end()) {
    fail(ErrorCode::kInvalidArgument, "{}: two tensors are named \"{}\"; names must differ",
         path.string(), *twice);
  }
  // The file: 8 bytes of header size (little-endian, as this machine), header, tensors.
  const std::string header = render_header(ordered, metadata);
  const uint64_t size = header.size();
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&size, 1)));
  file.write(header);
  for (const SafetensorsInput* tensor : ordered) file.write(tensor->bytes);
  file.commit();
}

}  // namespace sluice
