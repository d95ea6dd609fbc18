// Packed weights in device memory, as the engine keeps them.
//
// Used by the tests of matrix products and packing. Thread rule: host thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "op_test_util.h"
#include "ops/matmul/matmul.h"

namespace sluice::testing {

// What a code of e4m3 stands for, by its definition; NaN's codes give 480.
inline double e4m3_number(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// Memory for a weight; its padding is NaN until pack_weight writes it.
inline PackedWeight make_weight(Machine& machine, WeightFormat format, int64_t num_rows,
                                int64_t num_cols) {
  return {
      .data = machine.allocate(packed_weight_bytes(machine.device(), num_rows, num_cols, format)),
      .num_rows = num_rows,
      .num_cols = num_cols,
      .format = format};
}
inline PackedWeight make_weight(Machine& machine, int64_t num_rows, int64_t num_cols) {
  return make_weight(machine, WeightFormat::kBFloat16, num_rows, num_cols);
}

// values: [num_rows][num_cols]. Packed on return.
template <typename T>
PackedWeight pack(Machine& machine, std::vector<T> values, int64_t num_rows, int64_t num_cols) {
  const PackedWeight weight = make_weight(machine, num_rows, num_cols);
  pack_weight(machine.stream(),
              {.src = TensorView(values.data(), kDTypeOf<T>, {num_rows, num_cols}), .dst = weight});
  machine.synchronize();
  return weight;
}

}  // namespace sluice::testing
