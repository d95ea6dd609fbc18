// ScaleRows: what the numbers of a quantized matrix need beside themselves, in host memory.
//
// Made while weights are loaded, passed to pack_weight. Thread rule: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor_view.h"
#include "ops/matmul/matmul.h"

namespace sluice {

class Checkpoint;
struct WeightSource;

// A scale row is that of `scale_rows` rows of the matrix.
struct ScaleRows {
  std::vector<float> values;
  std::vector<uint8_t> zeros;  // as values; of integers
  std::vector<int32_t> order;  // of columns; of a format with orders
  // Those of GGUF's blocks in place of `values`, of all rows.
  std::vector<uint8_t> factors;
  std::vector<uint8_t> minima;
  std::vector<Float16> block_scales;
  std::vector<Float16> block_min_scales;
  int64_t scale_rows = 1;
  int64_t per_row = 1;

  bool present() const { return !values.empty(); }

  // Adds all to the args of the op, which must not outlive this.
  void add_to(PackWeightArgs& args) {
    if (!factors.empty()) add_blocks_to(args);
    if (!present()) return;
    const int64_t num_rows = static_cast<int64_t>(values.size()) / per_row;
    args.scales = TensorView(values.data(), DType::kF32, {num_rows, per_row});
    args.scale_rows = scale_rows;
    if (!zeros.empty()) args.zeros = TensorView(zeros.data(), DType::kU8, {num_rows, per_row});
    if (!order.empty()) args.order = TensorView(order.data(), DType::kI32, {std::ssize(order)});
  }

 private:
  void add_blocks_to(PackWeightArgs& args) {
    const int64_t num_rows = args.src.dim(0);
    const auto view = [&](auto& items, DType dtype) {
      if (items.empty()) return TensorView();
      return TensorView(items.data(), dtype, {num_rows, std::ssize(items) / num_rows});
    };
    args.values = {.factors = view(factors, DType::kU8),
                   .minima = view(minima, DType::kU8),
                   .scales = view(block_scales, DType::kF16),
                   .min_scales = view(block_min_scales, DType::kF16)};
  }
};

// Those of a source's matrix; none without scales of e4m3. Errors: kModel naming the tensor for a
// scale of 0, below it, or that is not finite: its numbers would all be 0 or make no sense.
ScaleRows read_scales(const WeightSource& source, const Checkpoint& checkpoint);

// The scales of a matrix whose rows are padded heads, one for each row; those of padding are 0, as
// its numbers are. `scales` are those of its rows without padding.
ScaleRows padded_scales(const WeightSource& source, const ScaleRows& scales);

}  // namespace sluice
