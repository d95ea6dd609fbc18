// Arena: hands out aligned pieces of one allocation, in order; nothing is given back.
//
// Weights, activations and per-pass arrays are each one Buffer, divided by an Arena. The same code
// computes the memory plan: it runs on an Arena without memory and reads used_bytes(), so the plan
// and the allocation always agree. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "core/tensor_view.h"

namespace sluice {

class Arena {
 public:
  static constexpr size_t kAlignment = 256;  // of every piece, as Device::allocate gives

  // A planning arena, without memory: every piece is null, and only used_bytes() is meaningful.
  Arena() = default;
  Arena(std::byte* base, size_t size_bytes) : base_(base), size_bytes_(size_bytes) {}

  bool planning() const { return base_ == nullptr; }
  size_t used_bytes() const { return used_bytes_; }

  // The next `num_bytes` bytes, at a multiple of kAlignment from the base; null while planning.
  // Contents are whatever the allocation holds. REQUIRES (checked): they fit what is left.
  std::byte* take(size_t num_bytes) {
    std::byte* piece = planning() ? nullptr : base_ + used_bytes_;
    used_bytes_ += (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    SLUICE_CHECK(planning() || used_bytes_ <= size_bytes_, "{} of {}", used_bytes_, size_bytes_);
    return piece;
  }

  // The same as a view of shape `dims`, outermost first.
  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims) {
    TensorView shape(nullptr, dtype, dims);
    return TensorView(take(shape.num_bytes()), dtype, dims);
  }

 private:
  std::byte* base_ = nullptr;
  size_t size_bytes_ = 0;
  size_t used_bytes_ = 0;
};

}  // namespace sluice
