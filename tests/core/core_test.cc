// core: bf16 and f16 against the definition of their formats, views and errors.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/dtype.h"
#include "core/error.h"
#include "core/ids.h"
#include "core/printable.h"
#include "core/tensor_view.h"

namespace sluice {
namespace {

// The nearest bf16, found by comparing the two neighbours in double precision instead of by bit
// operations.
float nearest_bf16(float value) {
  const uint32_t raw = std::bit_cast<uint32_t>(value);
  const float low = std::bit_cast<float>(raw & 0xffff0000u);
  const float high = std::bit_cast<float>((raw & 0xffff0000u) + 0x10000u);
  const double below = std::abs(static_cast<double>(value) - low);
  const double above = std::abs(static_cast<double>(high) - value);
  if (below != above) return below < above ? low : high;
  return (std::bit_cast<uint32_t>(low) >> 16) % 2 == 0 ? low : high;
}

TEST(BFloat16, RoundsToNearestEven) {
  uint32_t state = 1;
  for (int i = 0; i < 100000; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = std::bit_cast<float>((state & 0x807fffffu) | ((100 + i % 56) << 23));
    EXPECT_EQ(static_cast<float>(BFloat16(value)), nearest_bf16(value)) << value;
  }
  EXPECT_EQ(BFloat16(1.00390625f).bits, 0x3f80);  // a tie goes to the even neighbour
  EXPECT_EQ(BFloat16(1.01171875f).bits, 0x3f82);
}

TEST(BFloat16, KeepsNanAndInfinity) {
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::infinity()))));
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::max()))));
}

TEST(Float16, MatchesItsDefinitionForEveryBitPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const double mantissa = bits & 1023;
    const double sign = bits & 0x8000 ? -1 : 1;
    const float value = static_cast<float>(Float16{static_cast<uint16_t>(bits)});
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
    } else if (exponent == 0) {
      EXPECT_EQ(value, sign * std::ldexp(mantissa, -24));
    } else {
      EXPECT_EQ(value, sign * std::ldexp(1024 + mantissa, exponent - 25));
    }
  }
}

TEST(TensorView, RowsAndReshapeShareMemory) {
  float data[24] = {};
  const TensorView view(data, DType::kF32, {4, 3, 2});
  EXPECT_EQ(view.num_elements(), 24);
  EXPECT_EQ(view.num_bytes(), 96u);
  EXPECT_EQ(view.rows(1, 2).data<float>(), data + 6);
  EXPECT_EQ(view.rows(1, 2).dim(0), 2);
  EXPECT_EQ(view.reshape({8, 3}).dim(0), 8);
  EXPECT_EQ(view.to_string(), "f32[4, 3, 2]");
  EXPECT_EQ(TensorView().to_string(), "absent");
}

TEST(TensorViewDeathTest, RefusesWhatIsOutside) {
  float data[6] = {};
  const TensorView view(data, DType::kF32, {2, 3});
  EXPECT_DEATH(view.rows(1, 2), "check failed");
  EXPECT_DEATH(view.reshape({4, 2}), "check failed");
  EXPECT_DEATH((void)view.data<BFloat16>(), "view is f32");
}

TEST(Error, NamesContextAndMessage) {
  try {
    fail(ErrorCode::kModel, "layer {} is missing", 3);
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "layer 3 is missing");
    const Error outer = error.in("model.safetensors").in("loading");
    EXPECT_STREQ(outer.what(), "loading: model.safetensors: layer 3 is missing");
    EXPECT_EQ(outer.code(), ErrorCode::kModel);
  }
}

TEST(StrongId, DefaultsToInvalid) {
  EXPECT_FALSE(BlockId().valid());
  EXPECT_LT(BlockId(1), BlockId(2));
  static_assert(!std::is_convertible_v<int, BlockId>);
  static_assert(!std::is_constructible_v<BlockId, SequenceId>);
}

TEST(Printable, LeavesNothingThatATerminalObeys) {
  EXPECT_EQ(printable("plain text ~"), "plain text ~");
  EXPECT_EQ(printable("\x1b[2J\nsluice: fine\r\x7f\xc2\x9b"), "?[2J?sluice: fine????");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a?b");
  EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(printable(std::string(81, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace sluice
