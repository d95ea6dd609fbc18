// Draws values and rounds them to the formats of weights.
#include "model/loading/dummy_values.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/mix.h"
#include "ops/e4m3.h"

namespace sluice {
namespace {

// A uniform distribution of half width w has standard deviation w / sqrt(3).
constexpr float kHalfWidth = 0.02f * 1.7320508f;

// The zero point of integers, which of GGUF's codes of 4 bits lies between two.
float middle(WeightFormat format) {
  switch (format.numbers) {
    case WeightNumbers::kUint4:
      return 8.0f;
    case WeightNumbers::kUint8:
      return 128.0f;
    case WeightNumbers::kGguf4:
      return 7.5f;
    default:
      return 0.0f;
  }
}

float scale_of(WeightFormat format) {
  if (format.numbers == WeightNumbers::kGguf4) return 0x1p-8f;  // powers of two, which f16 has
  if (format.numbers == WeightNumbers::kGguf8) return 0x1p-12f;
  return kHalfWidth / (stores_e4m3(format) ? 448.0f : middle(format) - 1);
}

// To nearest. Scales of GGUF's codes are a little small, so the outermost numbers are cut.
long code_of(WeightFormat format, float value) {
  const long code = std::lround(value);
  if (format.numbers == WeightNumbers::kGguf4) return std::clamp(code, 0l, 15l);
  return stores_gguf(format) ? std::clamp(code, -127l, 127l) : code;
}

// Rounded as a quantizer would, so that a model of random codes has activations of the usual size.
std::vector<uint8_t> codes_of(WeightFormat format, const std::vector<BFloat16>& values) {
  const int16_t origin = e4m3_origin(127);  // of a scale of 1
  std::vector<uint8_t> codes;
  codes.reserve(values.size());
  for (const BFloat16 value : values) {
    const float scaled = static_cast<float>(value) / scale_of(format);
    codes.push_back(stores_e4m3(format)
                        ? to_e4m3(BFloat16(scaled).bits, origin)
                        : static_cast<uint8_t>(code_of(format, middle(format) + scaled)));
  }
  return codes;
}

// `count` values from a random place of `drawn` on, which is repeated.
template <typename Value>
std::vector<Value> repeat(const std::vector<Value>& drawn, size_t count, uint64_t& state) {
  std::vector<Value> values(count);
  size_t from = split_mix(state) % drawn.size();
  for (size_t at = 0; at < count; from = 0) {
    const size_t length = std::min(drawn.size() - from, count - at);
    std::copy_n(drawn.begin() + static_cast<std::ptrdiff_t>(from), length,
                values.begin() + static_cast<std::ptrdiff_t>(at));
    at += length;
  }
  return values;
}

}  // namespace

uint64_t dummy_state(uint64_t seed, std::string_view tensor) {
  uint64_t state = seed;
  for (const char c : tensor) state = split_mixed(state + static_cast<unsigned char>(c));
  return state;
}

std::vector<BFloat16> draw_uniform(size_t count, float mean, uint64_t& state) {
  std::vector<BFloat16> values(count);
  for (BFloat16& value : values) {
    const float unit = static_cast<float>(split_mix(state) >> 40) * 0x1p-24f;  // [0, 1)
    value = BFloat16(mean + kHalfWidth * (2 * unit - 1));
  }
  return values;
}

DummyNumbers::DummyNumbers(uint64_t& state) : drawn_(draw_uniform(1'000'003, 0, state)) {}

void DummyRows::scale(float factor) {
  for (BFloat16& value : values) value = BFloat16(static_cast<float>(value) * factor);
}

std::vector<std::byte> DummyRows::cut(int64_t row_begin, int64_t num_rows, int64_t col_begin,
                                      int64_t num_cols) const {
  const auto all =
      codes.empty() ? std::as_bytes(std::span(values)) : std::as_bytes(std::span(codes));
  const auto unit = static_cast<int64_t>(dtype_bytes(dtype()));
  std::vector<std::byte> result(static_cast<size_t>(num_rows * num_cols * unit));
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t first = (row_begin + row) * num_columns + col_begin;
    std::copy_n(all.begin() + first * unit, num_cols * unit,
                result.begin() + row * num_cols * unit);
  }
  return result;
}

DummyRows DummyNumbers::next_rows(WeightFormat format, std::span<const int64_t> shape,
                                  int64_t num_rows, uint64_t& state) {
  DummyRows rows{.count = num_rows, .num_columns = shape[1]};
  const auto count = static_cast<size_t>(std::min(shape[0], num_rows) * shape[1]);
  if (!stores_codes(format)) {
    rows.values = repeat(drawn_, count, state);
    return rows;
  }
  std::vector<uint8_t>& coded = coded_[format.numbers];
  if (coded.empty()) coded = codes_of(format, drawn_);
  rows.codes = repeat(coded, count, state);
  return rows;
}

// Minima of 15 halves of a step, the middle of 16 codes; codes of 8 bits have theirs at 0.
// Factors are 1.
ScaleRows dummy_gguf_values(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  const auto num_groups = static_cast<size_t>(num_rows * (num_cols / format.group_cols));
  const auto num_blocks = static_cast<size_t>(num_rows * (num_cols / format.block_cols));
  const bool is_4 = format.numbers == WeightNumbers::kGguf4;
  // A power of two as f16.
  const auto power = [](int exponent) {
    return Float16{static_cast<uint16_t>((15 + exponent) << 10)};
  };
  ScaleRows rows{.factors = std::vector<uint8_t>(num_groups, 1),
                 .block_scales = std::vector<Float16>(num_blocks, power(is_4 ? -8 : -12))};
  if (!format.has_minima) return rows;
  rows.minima.assign(num_groups, is_4 ? 15 : 0);
  rows.block_min_scales.assign(num_blocks, power(-9));
  return rows;
}

// With orders of columns, the order is that of x: products take the same path as with any other.
ScaleRows dummy_scales(WeightFormat format, int64_t num_rows, int64_t num_cols) {
  if (stores_gguf(format)) return dummy_gguf_values(format, num_rows, num_cols);
  const int64_t per_row = scales_per_row(format, num_cols);
  const int64_t num_scale_rows = (num_rows + format.group_rows - 1) / format.group_rows;
  const auto count = static_cast<size_t>(num_scale_rows * per_row);
  ScaleRows rows{.values = std::vector<float>(count, scale_of(format)),
                 .scale_rows = format.group_rows,
                 .per_row = per_row};
  if (stores_integers(format)) rows.zeros.assign(count, static_cast<uint8_t>(middle(format)));
  if (format.num_orders > 0) {
    rows.order.resize(static_cast<size_t>(num_cols));
    std::iota(rows.order.begin(), rows.order.end(), 0);
  }
  return rows;
}

}  // namespace sluice
