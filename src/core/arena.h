// Arena: hands out aligned pieces of one allocation, in order; nothing is given back.
//
// Weights, activations and per-pass arrays are each one Buffer cut up by an Arena. The same code
// that cuts also plans: run it on an Arena without memory and ask how much it used, so that a plan
// can never disagree with what is taken. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <initializer_list>

#include "core/tensor_view.h"

namespace sluice {

class Arena {
 public:
  static constexpr size_t kAlignment = 256;  // of every piece, as Device::allocate gives

  // Without memory: pieces are null, only `used_bytes` means something.
  Arena() = default;
  Arena(std::byte* base, size_t size_bytes) : base_(base), size_bytes_(size_bytes) {}

  bool planning() const { return base_ == nullptr; }
  size_t used_bytes() const { return used_bytes_; }

  std::byte* take(size_t num_bytes) {
    std::byte* piece = planning() ? nullptr : base_ + used_bytes_;
    used_bytes_ += (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    SLUICE_CHECK(planning() || used_bytes_ <= size_bytes_, "{} of {}", used_bytes_, size_bytes_);
    return piece;
  }

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
