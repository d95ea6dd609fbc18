// IntegerRows: a matrix of integers in one of the layouts of files, read as rows of one code a
// byte.
//
// With w = (q - zero) * scale, all unsigned, N rows and K columns, b bits, little-endian words of
// 32 bits, the first element in the lowest bits:
//   kPackQuantized  weight_packed [N, K b / 32]: words of neighbouring columns. weight_scale
//                   [N, groups]. weight_zero_point [N b / 32, groups]: words of neighbouring rows.
//                   weight_shape: N, K. weight_g_idx [K].
//   kAwq            qweight [K, N / 8]: words of rows, of each eight in the order 0 2 4 6 1 3 5 7.
//                   qzeros [groups, N / 8] in the same order. scales [groups, N].
//   kGptq           qweight [K b / 32, N]: words of neighbouring columns. qzeros
//                   [groups, N b / 32]: words of neighbouring rows, from which a word of ones was
//                   subtracted. scales [groups, N]. g_idx [K].
//   kGptqV2         the same, zero points as they are.
// g_idx is the group of each column.
//
// Used by Weights. Thread rule: `read` from any thread.
// Source: compressed-tensors 0.20.0 (pack_quantized/helpers.py), autoawq 0.2.9
// (utils/packing_utils.py), gptqmodel 7.7.0 (nn_modules/qlinear).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "model/loading/scale_rows.h"
#include "model/loading/weight_tensors.h"
#include "model/weight_layout.h"
#include "ops/matmul/matmul.h"

namespace sluice {

class IntegerRows final : public WeightReader {
 public:
  // Reads the tensors of a source whose weights are integers: half a byte or a byte a number.
  // Errors: kModel naming the tensor for scales that are 0 or not finite, a weight_shape of another
  // matrix, and groups that do not have their number of columns, or not in their order where the
  // configuration names none.
  IntegerRows(const WeightSource& source, const Checkpoint& checkpoint);

  // Bytes of rows [num_rows, num_cols], the columns in scales().order. REQUIRES: whole rows.
  void read(size_t offset, std::span<std::byte> dst) const noexcept override;

  // Of all rows; moves them out.
  ScaleRows take_scales() { return std::move(scales_); }

 private:
  // The shape and the layout of the matrix.
  struct Layout {
    IntegerForm form = IntegerForm::kNone;
    int64_t n = 0;
    int64_t k = 0;
    int64_t groups = 0;
    int64_t group_cols = 0;
    int bits = 0;
    int64_t skipped_rows = 0;  // of the first word, where words have neighbouring rows

    int64_t per_word() const { return 32 / bits; }
    int64_t row_words() const { return (skipped_rows + n + per_word() - 1) / per_word(); }
    uint32_t mask() const { return (1u << bits) - 1; }
    uint32_t ones() const { return ~0u / mask(); }  // a 1 for each number of a word
  };

  static Layout layout_of(const WeightSource& source);
  // Rows from `first` on; number(row, column) has the number in its lowest bits.
  template <typename Number>
  void read_tiles(int64_t first, std::span<std::byte> dst, const Number& number) const;
  template <int kBits>
  void read_numbers(int64_t first, std::span<std::byte> dst) const;
  uint8_t zero_of(const std::vector<uint32_t>& words, int64_t row, int64_t group) const;
  void read_zeros(const IntegerTensors& tensors);
  void read_scales(const IntegerTensors& tensors);
  // The columns of the whole matrix by group. Errors: those of the constructor.
  void read_order(const CheckpointTensor& groups, bool is_ordered);

  Layout layout_;
  std::vector<uint32_t> words_;  // of the numbers; of kAwq [N / 8, K], so that rows are near
  std::vector<int32_t> order_;   // empty: that of the file
  ScaleRows scales_;
};

}  // namespace sluice
