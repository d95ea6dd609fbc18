#include "engine/sampling/token_masks.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

TensorView TokenMasks::cut(Arena& arena, int64_t max_rows, int64_t vocab_size) {
  return arena.tensor(DType::kI32, {max_rows, (vocab_size + 31) / 32});
}

size_t TokenMasks::pinned_bytes(int64_t max_rows, int64_t vocab_size) {
  Arena plan;
  cut(plan, max_rows, vocab_size);
  return plan.used_bytes();
}

TokenMasks::TokenMasks(int64_t max_rows, int64_t vocab_size, Device& device)
    : memory_(device.allocate(pinned_bytes(max_rows, vocab_size), MemoryKind::kPinned)) {
  Arena arena(memory_.data(), memory_.size_bytes());
  masks_ = cut(arena, max_rows, vocab_size);
}

int32_t TokenMasks::add(const std::vector<int32_t>& ids) {
  int32_t* words = masks_.rows(num_masks_, 1).data<int32_t>();
  std::fill_n(words, masks_.dim(1), 0);
  for (const int32_t id : ids) words[id / 32] |= static_cast<int32_t>(uint32_t{1} << (id % 32));
  return num_masks_++;
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
