// Reads tensors, and parts of them, from their files.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "io/model_directory.h"

namespace sluice {

CheckpointTensor CheckpointTensor::part(int64_t num_columns, Range rows, Range columns) const {
  SLUICE_CHECK(part_begin == 0 && row_bytes == 0, "a part of a part of {}", name);
  const size_t element_bytes = dtype_bytes(dtype);
  const size_t stride = static_cast<size_t>(num_columns) * element_bytes;
  CheckpointTensor result = *this;
  result.part_begin =
      static_cast<size_t>(rows.begin) * stride + static_cast<size_t>(columns.begin) * element_bytes;
  result.num_bytes = static_cast<size_t>(rows.count * columns.count) * element_bytes;
  if (columns.count != num_columns) {
    result.row_bytes = static_cast<size_t>(columns.count) * element_bytes;
    result.row_stride = stride;
  }
  return result;
}

void CheckpointTensor::read(size_t offset, std::span<std::byte> dst) const {
  if (row_bytes == 0) return read_whole(part_begin + offset, dst);
  while (!dst.empty()) {
    const size_t in_row = offset % row_bytes;
    const size_t count = std::min(row_bytes - in_row, dst.size());
    read_whole(part_begin + offset / row_bytes * row_stride + in_row, dst.first(count));
    offset += count;
    dst = dst.subspan(count);
  }
}

void CheckpointTensor::read_whole(size_t offset, std::span<std::byte> dst) const {
  if (storage == nullptr) return file->read(file_offset + offset, dst);
  SLUICE_CHECK(offset % sizeof(float) == 0 && dst.size() % sizeof(float) == 0,
               "parts of elements: {} bytes at {}", dst.size(), offset);
  std::vector<float> elements(dst.size() / sizeof(float));
  read_gguf_elements(*file, file_offset, *storage, static_cast<int64_t>(offset / sizeof(float)),
                     elements);
  if (storage->values == GgufConversion::kDecay) require_finite(elements);
  std::memcpy(dst.data(), elements.data(), dst.size());
}

std::vector<std::byte> CheckpointTensor::read_blocks() const {
  const GgufType& type = *storage->type;
  const auto bytes_of = [&](size_t element_bytes) {
    return element_bytes / sizeof(float) / static_cast<size_t>(type.block_elements) *
           type.block_bytes;
  };
  std::vector<std::byte> blocks(bytes_of(num_bytes));
  const size_t run_bytes = row_bytes == 0 ? num_bytes : row_bytes;  // one after the other
  for (size_t run = 0; run * run_bytes < num_bytes; ++run) {
    const size_t first = (part_begin + run * row_stride) / sizeof(float);
    read_gguf_blocks(*file, file_offset, *storage, static_cast<int64_t>(first),
                     std::span(blocks).subspan(bytes_of(run * run_bytes), bytes_of(run_bytes)));
  }
  return blocks;
}

void CheckpointTensor::require_finite(std::span<const float> elements) const {
  if (std::ranges::all_of(elements, [](float element) { return std::isfinite(element); })) return;
  throw Error(ErrorCode::kModel,
              fmt::format("tensor \"{}\" is made of decays (ssm_a), and one is not below 0; fetch "
                          "the file again",
                          name),
              file->path().string());
}

// Of columns the rows between are read ahead as well: pages of the file hold both. Of a part of a
// converted tensor all of it.
void CheckpointTensor::will_need() const {
  if (storage != nullptr) return file->will_need(file_offset, num_file_bytes);
  const size_t num_rows = row_bytes == 0 ? 1 : num_bytes / row_bytes;
  const size_t length = row_bytes == 0 ? num_bytes : (num_rows - 1) * row_stride + row_bytes;
  file->will_need(file_offset + part_begin, length);
}

}  // namespace sluice
