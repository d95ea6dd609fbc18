// SoftmaxState: memory for the softmax state that is carried between calls of attention.
//
// Owned by the executors: of offloaded KV for rows with history, of any KV where a model's queries
// differ by zones of keys. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/arena.h"
#include "device/device.h"
#include "ops/attention/attention.h"

namespace sluice {

class SoftmaxState {
 public:
  // For passes of up to `max_rows` rows; 0: none.
  SoftmaxState(Device& device, int64_t max_rows, int64_t num_q_heads, int64_t head_dim) {
    const size_t num_bytes = bytes(max_rows, num_q_heads, head_dim);
    if (num_bytes == 0) return;
    memory_.emplace(device.allocate(num_bytes, MemoryKind::kDevice));
    Arena arena(memory_->data(), memory_->size_bytes());
    state_ = cut(arena, max_rows, num_q_heads, head_dim);
  }

  static size_t bytes(int64_t max_rows, int64_t num_q_heads, int64_t head_dim) {
    if (max_rows == 0) return 0;
    Arena plan;
    cut(plan, max_rows, num_q_heads, head_dim);
    return plan.used_bytes();
  }

  bool present() const { return state_.acc.present(); }
  // Of the rows of a pass.
  AttentionState rows(int64_t count) const {
    return {.acc = state_.acc.rows(0, count),
            .max = state_.max.rows(0, count),
            .sum = state_.sum.rows(0, count)};
  }

 private:
  static AttentionState cut(Arena& arena, int64_t max_rows, int64_t num_q_heads, int64_t head_dim) {
    return {.acc = arena.tensor(DType::kF32, {max_rows, num_q_heads, head_dim}),
            .max = arena.tensor(DType::kF32, {max_rows, num_q_heads}),
            .sum = arena.tensor(DType::kF32, {max_rows, num_q_heads})};
  }

  std::optional<Buffer> memory_;
  AttentionState state_;
};

}  // namespace sluice
