// Any bytes as a safetensors file: an Error or a header whose tensors tile the data exactly.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try {
    check(sluice::parse_safetensors_header(file, "fuzz"), file);
  } catch (const sluice::Error&) {
  }
  return 0;
}
