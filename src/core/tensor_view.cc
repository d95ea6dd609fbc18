// Rows of a view, and its text for messages.
#include "core/tensor_view.h"

namespace sluice {

TensorView TensorView::rows(int64_t begin, int64_t count) const {
  SLUICE_CHECK(rank_ >= 1 && begin >= 0 && count >= 0 && begin + count <= dims_[0],
               "rows [{}, +{}) of {}", begin, count, to_string());
  TensorView view = *this;
  const int64_t row_elements = dims_[0] == 0 ? 0 : num_elements() / dims_[0];
  // A null view (of an Arena that only plans) stays null.
  if (present()) view.data_ += static_cast<size_t>(begin * row_elements) * dtype_bytes(dtype_);
  view.dims_[0] = count;
  return view;
}

std::string TensorView::to_string() const {
  if (!present()) return "absent";
  std::string text(dtype_name(dtype_));
  text += "[";
  for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(dims_[i]);
  return text + "]";
}

}  // namespace sluice
