// Rows of e4m3 and of int8 against double precision: which numbers a row of bf16 becomes, and that
// what a row stands for is exactly a bf16.
//
// Reveals: scales that are one step off, ties that go the wrong way, ranges that overflow or
// vanish, and rows that are not finite and look finite afterwards. The vectors that the compiler
// makes of these loops are tested with them, since rows are as long as heads.
#include "ops/kv_rounding.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "op_test_util.h"

namespace sluice::testing {
namespace {

// The magnitude of a number of e4m3, from its definition.
double magnitude_of(int code) {
  const int exponent = code >> 3;
  const int mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

// The magnitude of e4m3 that is nearest to `value`, of two the one with an even mantissa.
double nearest_to(double value) {
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double nearer = std::abs(magnitude_of(code) - value);
    const double so_far = std::abs(magnitude_of(best) - value);
    if (nearer < so_far || (nearer == so_far && code % 2 == 0)) best = code;
  }
  return magnitude_of(best);
}

double as_double(uint16_t bits) {
  return static_cast<double>(static_cast<float>(BFloat16::from_bits(bits)));
}

// The values that a row stands for after rounding.
std::vector<uint16_t> rounded_row(const std::vector<uint16_t>& row,
                                  KvElement element = KvElement::kE4m3) {
  const auto count = static_cast<int32_t>(row.size());
  std::vector<uint8_t> numbers(row.size());
  const uint8_t scale = round_kv_row(element, row.data(), count, numbers.data());
  std::vector<uint16_t> values(row.size());
  read_kv_row(element, numbers.data(), scale, count, values.data());
  return values;
}

// Rows of random bf16 whose exponents differ by `spread` at most, one for each seed.
std::vector<std::vector<uint16_t>> random_rows(uint32_t num_rows, float spread = 1.0f) {
  std::vector<std::vector<uint16_t>> rows(num_rows);
  for (uint32_t seed = 1; seed <= num_rows; ++seed) {
    for (const BFloat16 value : random_bf16(128, seed, std::pow(2.0f, spread * (seed % 40)))) {
      rows[seed - 1].push_back(value.bits);
    }
  }
  return rows;
}

// Error over power, of all numbers.
double nmse_of(KvElement element) {
  double error = 0.0;
  double power = 0.0;
  for (const std::vector<uint16_t>& row : random_rows(100, 0.0f)) {
    const std::vector<uint16_t> values = rounded_row(row, element);
    for (size_t i = 0; i < row.size(); ++i) {
      error += std::pow(as_double(values[i]) - as_double(row[i]), 2);
      power += std::pow(as_double(row[i]), 2);
    }
  }
  return error / power;
}

TEST(E4m3Rows, AreTheNearestNumbersWithTheSmallestScale) {
  // All mantissas of the largest number, at exponents all over the range.
  for (uint32_t exponent = 1; exponent < 255;
       exponent += exponent < 30 || exponent > 235 ? 1 : 13) {
    for (uint32_t mantissa = 0; mantissa < 128; mantissa += 5) {
      const auto largest = static_cast<uint16_t>(exponent << 7 | mantissa);
      std::vector<uint16_t> row = {largest, 0, 0x8000};
      for (uint32_t below = 0; below < std::min(exponent, 22u); ++below) {
        row.push_back(static_cast<uint16_t>((exponent - below) << 7 | (mantissa * 77 % 128)) ^
                      (below % 2 == 0 ? 0x8000u : 0u));
      }
      row[3] = largest;  // the first of these might be larger
      int power = -116;
      while (power < 119 && as_double(largest) > std::ldexp(448, power)) ++power;
      const std::vector<uint16_t> values = rounded_row(row);
      for (size_t i = 0; i < row.size(); ++i) {
        const double value = as_double(row[i]);
        const double expected = std::ldexp(nearest_to(std::abs(std::ldexp(value, -power))), power);
        ASSERT_EQ(as_double(values[i]), std::copysign(expected, value))
            << "exponent " << exponent << ", mantissa " << mantissa << ", number " << i;
      }
    }
  }
}

// The same for int8, whose numbers are integers: all mantissas of the largest number at all
// exponents, among them the mantissa of ones, which would be rounded to 128.
TEST(Int8Rows, AreTheNearestIntegersWithTheSmallestScale) {
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (uint32_t mantissa = 0; mantissa < 128; ++mantissa) {
      const auto largest = static_cast<uint16_t>(exponent << 7 | mantissa);
      std::vector<uint16_t> row = {largest, 0, 0x8000};
      for (uint32_t below = 1; below < std::min(exponent, 10u); ++below) {
        row.push_back(static_cast<uint16_t>((exponent - below) << 7 | (mantissa * 77 % 128)) ^
                      (below % 2 == 0 ? 0x8000u : 0u));
      }
      int power = -126;
      while (power < 121 && std::nearbyint(std::ldexp(as_double(largest), -power)) > 127) ++power;
      const std::vector<uint16_t> values = rounded_row(row, KvElement::kInt8);
      for (size_t i = 0; i < row.size(); ++i) {
        const double value = as_double(row[i]);
        const double integer = std::nearbyint(std::ldexp(std::abs(value), -power));
        const double expected = std::ldexp(std::min(integer, 127.0), power);
        ASSERT_EQ(as_double(values[i]), std::copysign(expected, value))
            << "exponent " << exponent << ", mantissa " << mantissa << ", number " << i;
      }
    }
  }
}

TEST(RoundedRows, RoundingTwiceChangesNothing) {
  for (const KvElement element : {KvElement::kE4m3, KvElement::kInt8}) {
    for (const std::vector<uint16_t>& row : random_rows(200)) {
      const std::vector<uint16_t> once = rounded_row(row, element);
      EXPECT_EQ(rounded_row(once, element), once) << kv_element_name(element);
    }
  }
}

TEST(RoundedRows, OfNumbersThatAreNotFiniteAreNan) {
  for (const KvElement element : {KvElement::kE4m3, KvElement::kInt8}) {
    for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc0, 0xffff}) {
      for (const uint16_t value : rounded_row({0x3f80, bad, 0x0000}, element)) {
        EXPECT_TRUE(std::isnan(as_double(value)));
      }
    }
    // So is memory that debug builds have filled.
    const std::vector<uint8_t> freed(4, 0xFF);
    std::vector<uint16_t> values(4);
    read_kv_row(element, freed.data(), 0xFF, 4, values.data());
    for (const uint16_t value : values) EXPECT_TRUE(std::isnan(as_double(value)));
  }
}

// Of normal numbers. int8 has steps of 1 / 127 to 1 / 64 of the largest number.
TEST(RoundedRows, HaveTheErrorOfTheirSteps) {
  EXPECT_NEAR(nmse_of(KvElement::kE4m3), 7.0e-4, 0.7e-4);
  EXPECT_LT(nmse_of(KvElement::kInt8), 1.0e-4);
}

}  // namespace
}  // namespace sluice::testing
