// What loaded weights stand for, compared with the numbers of a file.
//
// Used by tests of quantized weights. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/matmul/packed_weight.h"

namespace sluice::testing {

// The product of a weight with the unit matrix: its columns, in f32. A sum has one number that is
// not 0, so nothing is rounded but the number itself.
std::vector<float> columns_of(const PackedWeight& weight, Stream& stream);

// Compares rows from `row_begin` on with a weight [rows, cols] of the file.
void expect_rows(const std::vector<float>& columns, int64_t num_rows, int64_t row_begin,
                 const std::vector<float>& weight, int64_t cols, const std::string& what);

// The squared distance of `a` from `b`, as a share of the square of `b`.
double nmse(std::span<const float> a, std::span<const float> b);
// The median of that of each of `num_rows` rows. Of mixtures: where two experts are equally likely,
// another rounding chooses the other one, and the row has other numbers.
double median_nmse(std::span<const float> a, std::span<const float> b, size_t num_rows);

}  // namespace sluice::testing
