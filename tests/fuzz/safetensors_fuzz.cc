// Reads any bytes as a safetensors file: an Error or a header whose tensors tile the data exactly.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "core/error.h"
#include "io/safetensors.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const sluice::SafetensorsHeader& header, std::span<const std::byte> file) {
  if (header.tensors.empty()) return;
  uint64_t reached = header.tensors.front().begin;
  for (const sluice::SafetensorsEntry& tensor : header.tensors) {
    require(tensor.begin == reached && tensor.end >= tensor.begin && tensor.end <= file.size());
    reached = tensor.end;
    if (!tensor.dtype) continue;
    uint64_t bytes = sluice::dtype_bytes(*tensor.dtype);
    for (int64_t dim : tensor.shape) bytes *= static_cast<uint64_t>(dim);
    require(bytes == tensor.end - tensor.begin);
  }
  require(reached == file.size());
}

void parse(std::span<const std::byte> file) {
  try {
    check(sluice::parse_safetensors_header(file, "fuzz"), file);
  } catch (const sluice::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  parse(std::as_bytes(std::span(data, size)));
  // Once more with a header size computed from the bytes: mutations rarely keep the size right, so
  // few inputs would pass the first check.
  if (size < 8) return 0;
  std::vector<uint8_t> file(data, data + size);
  const auto last_brace = std::find(file.rbegin(), file.rend() - 8, '}').base();
  const uint64_t header_bytes = static_cast<uint64_t>(last_brace - file.begin()) - 8;
  std::memcpy(file.data(), &header_bytes, 8);
  parse(std::as_bytes(std::span(file)));
  return 0;
}
