#include "model/weight_layout.h"

namespace sluice {

PackedWeight WeightLayout::matrix(int64_t num_rows, int64_t num_cols) {
  constexpr WeightFormat kFormat = WeightFormat::kBFloat16;  // of every matrix
  return {.data = arena_.take(packed_weight_bytes(device_, num_rows, num_cols, kFormat)),
          .num_rows = num_rows,
          .num_cols = num_cols,
          .format = kFormat};
}

void WeightLayout::add_rows(const std::string& name, const PackedWeight& matrix, int64_t row_begin,
                            int64_t num_rows) {
  sources_.push_back({.name = name,
                      .shape = {num_rows, matrix.num_cols},
                      .matrix = matrix,
                      .row_begin = row_begin,
                      .vector = {}});
}

void WeightLayout::add_vector(const std::string& name, const TensorView& vector, float dummy_mean) {
  sources_.push_back({.name = name,
                      .shape = {vector.num_elements()},
                      .matrix = {},
                      .vector = vector,
                      .dummy_mean = dummy_mean});
}

void WeightLayout::add_head_rows(const std::string& name, const PackedWeight& matrix,
                                 int64_t head_begin, int64_t num_heads,
                                 const HeadPadding& padding) {
  add_rows(name, matrix, head_begin * padding.padded_head_dim, num_heads * padding.head_dim);
  sources_.back().heads = HeadAxis::kRows;
  sources_.back().padding = padding;
}

// A vector is stored as one column whose rows are head channels.
void WeightLayout::add_head_vector(const std::string& name, const TensorView& vector,
                                   const HeadPadding& padding, float dummy_mean) {
  add_vector(name, vector, dummy_mean);
  WeightSource& source = sources_.back();
  source.shape[0] = source.shape[0] / padding.padded_head_dim * padding.head_dim;
  source.heads = HeadAxis::kRows;
  source.padding = padding;
}

void WeightLayout::add_head_columns(const std::string& name, const PackedWeight& matrix,
                                    const HeadPadding& padding) {
  add_rows(name, matrix, 0, matrix.num_rows);
  WeightSource& source = sources_.back();
  source.shape[1] = matrix.num_cols / padding.padded_head_dim * padding.head_dim;
  source.heads = HeadAxis::kColumns;
  source.padding = padding;
}

}  // namespace sluice
