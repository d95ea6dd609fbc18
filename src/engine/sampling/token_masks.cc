#include "engine/sampling/token_masks.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

TensorView TokenMasks::cut(Arena& arena, int64_t max_rows, int64_t vocab_size) {
  return arena.tensor(DType::kI32, {max_rows, (vocab_size + 31) / 32});
}

size_t TokenMasks::memory_bytes(int64_t max_rows, int64_t vocab_size) {
  Arena plan;
  cut(plan, max_rows, vocab_size);
  return plan.used_bytes();
}

TokenMasks::TokenMasks(int64_t max_rows, int64_t vocab_size, Device& device)
    : host_memory_(device.allocate(memory_bytes(max_rows, vocab_size), MemoryKind::kPinned)),
      device_memory_(device.allocate(memory_bytes(max_rows, vocab_size), MemoryKind::kDevice)) {
  Arena arena(host_memory_.data(), host_memory_.size_bytes());
  masks_ = cut(arena, max_rows, vocab_size);
}

int32_t TokenMasks::add(const std::vector<int32_t>& ids) {
  int32_t* words = masks_.rows(num_masks_, 1).data<int32_t>();
  std::fill_n(words, masks_.dim(1), 0);
  for (const int32_t id : ids) words[id / 32] |= static_cast<int32_t>(uint32_t{1} << (id % 32));
  return num_masks_++;
}

TensorView TokenMasks::copied(Stream& stream) const {
  Arena arena(device_memory_.data(), device_memory_.size_bytes());
  const TensorView all = cut(arena, masks_.dim(0), masks_.dim(1) * 32);
  const TensorView used = masks_.rows(0, num_masks_);
  stream.copy({.dst = all.bytes(), .src = used.bytes(), .num_bytes = used.num_bytes()});
  return all.rows(0, num_masks_);
}

void TokenMasks::set(int32_t mask, std::span<const int32_t> words) {
  int32_t* to = masks_.rows(mask, 1).data<int32_t>();
  if (words.empty()) {
    std::fill_n(to, masks_.dim(1), -1);
    return;
  }
  SLUICE_CHECK(std::ssize(words) == masks_.dim(1), "{} words", words.size());
  std::ranges::copy(words, to);
}

}  // namespace sluice
