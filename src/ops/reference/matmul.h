// The matrix product in double precision, written from its equation.
//
// Used by tests, which compare every backend with it. Thread rule: pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace sluice::reference {

// Row-major, without a packed layout: packing is part of what tests check.
struct MatmulInput {
  std::vector<BFloat16> x;       // [m, k]
  std::vector<BFloat16> weight;  // [n, k], as in a checkpoint
  std::vector<BFloat16> bias;    // [n] or empty
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

struct MatmulOutput {
  std::vector<double> value;      // [m, n]: sum over k of x * weight, plus bias
  std::vector<double> magnitude;  // [m, n]: sum over k of |x * weight|, plus |bias|
};

// Types: products of two bf16 are exact in double; sums round at 2^-53, far below what f32 can see.
// `magnitude` scales the rounding errors that any order of summation may make.
MatmulOutput matmul(const MatmulInput& input);

// x [m, k] as a GPU rounds it before it multiplies e4m3 by e4m3 (cuda/matmul/quantize_rows.h): the
// largest magnitude of each `group_cols` columns of a row, of all for 0, becomes 448, the largest
// e4m3, and all numbers go to the nearest one, ties to even.
//
// Types: scales and quotients are f32, each rounded once, as they are there, so that the codes are
// the same; a product of code and scale is exact in double. REQUIRES: x is finite.
std::vector<double> rounded_to_e4m3(const std::vector<BFloat16>& x, int64_t k, int64_t group_cols);

}  // namespace sluice::reference
