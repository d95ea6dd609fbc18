// TensorView: a typed, shaped, non-owning view of contiguous row-major memory.
//
// Passed between model, ops and kernels. It does not record the kind of its memory; the owner
// (device/Buffer) does. Thread rule: a value; access to its memory follows stream order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace sluice {

inline constexpr int kMaxRank = 5;

class TensorView {
 public:
  // An absent tensor, for optional arguments (a bias, a norm weight).
  TensorView() = default;

  // Shapes: `dims` outermost first, at most kMaxRank of them, each >= 0.
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> dims)
      : data_(static_cast<std::byte*>(data)), dtype_(dtype), rank_(static_cast<int>(dims.size())) {
    SLUICE_CHECK(rank_ <= kMaxRank, "rank {}", rank_);
    int i = 0;
    for (int64_t dim : dims) {
      SLUICE_CHECK(dim >= 0, "dim {} of {}", dim, i);
      dims_[i++] = dim;
    }
  }

  bool present() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const {
    SLUICE_CHECK(i >= 0 && i < rank_, "dim {} of a rank-{} view", i, rank_);
    return dims_[i];
  }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  size_t num_bytes() const { return static_cast<size_t>(num_elements()) * dtype_bytes(dtype_); }
  std::byte* bytes() const { return data_; }

  // The elements, checked against the type of the view.
  template <typename T>
  T* data() const {
    SLUICE_CHECK(kDTypeOf<T> == dtype_, "view is {}", dtype_name(dtype_));
    return reinterpret_cast<T*>(data_);
  }

  // Rows [begin, begin + count) of the outermost dimension; the same memory.
  TensorView rows(int64_t begin, int64_t count) const;

  // The same memory in another shape with as many elements.
  TensorView reshape(std::initializer_list<int64_t> dims) const {
    TensorView view(data_, dtype_, dims);
    SLUICE_CHECK(view.num_elements() == num_elements(), "{} to {}", to_string(), view.to_string());
    return view;
  }

  // "bf16[3, 128]", for error texts.
  std::string to_string() const;

 private:
  std::byte* data_ = nullptr;
  DType dtype_ = DType::kU8;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> dims_{};
};

}  // namespace sluice
