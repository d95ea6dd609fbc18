// The safetensors format: a strict header parser and a writer.
//
// Used by ModelDirectory for weights and by taps and tests for writing tensors.
// A file is: 8 bytes little-endian header size N, N bytes of JSON, then the tensors' bytes.
// Thread rule: free functions without state.
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
#include "io/model_file.h"

namespace sluice {

// Limit of the header's size in the reference implementation.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// One tensor of a file, as its header says.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as in the file: "BF16"
  std::optional<DType> dtype;  // empty for a type of the format that Sluice does not use
  std::vector<int64_t> shape;  // outermost first; empty for a scalar
  uint64_t begin = 0;          // bytes [begin, end) counted from the start of the file
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;  // the key __metadata__
  std::vector<SafetensorsEntry> tensors;        // in the order of their bytes
};

// Parses and checks the header of a whole file; the tensors' bytes are not touched.
//
// `name` (a path) opens every error text. Data may lie at any address: files without padding exist,
// so a tensor's first byte need not be aligned to its type.
// Errors: kModel, one text for each broken rule: file shorter than 8 bytes; header size over
// kMaxSafetensorsHeaderBytes or past the end; header not starting with '{'; not valid UTF-8 JSON;
// duplicate keys; metadata that is not text to text; unknown dtype; negative, fractional or
// overflowing shape; size that differs from the offsets; elements that do not fill whole bytes;
// offsets that run backwards, overlap, leave a hole, or do not end where the file ends.
// Source: https://huggingface.co/docs/safetensors, section "Format", and its reference parser.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view name);

// As above; reads the header only. Errors: also those of ModelFile::read.
SafetensorsHeader read_safetensors_header(const ModelFile& file);

// A tensor to be written; `bytes` must be as long as shape and dtype say.
struct SafetensorsInput {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// The format's name of a type: "F8_E4M3".
std::string_view safetensors_dtype_name(DType dtype);

// Writes a file that appears only when it is complete, byte for byte as the reference writer does:
// wider types first, then by name, header padded so that data starts at a multiple of 8.
//
// Errors: kIo naming the path for a full disk or an unwritable place; kInvalidArgument for two
// tensors of one name.
void write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsInput> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace sluice
