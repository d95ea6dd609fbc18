// Invalid values of every kind; each error must name option and value.
#include "text/value_parsers.h"

#include <limits>

#include <gtest/gtest.h>

#include "sluice/error.h"

namespace sluice {
namespace {

// The text of the kInvalidArgument that `call` throws; "" when it throws nothing.
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(ParseInteger, ReadsWholeNumbersOnly) {
  EXPECT_EQ(parse_integer("--x", "0", 0, 9), 0);
  EXPECT_EQ(parse_integer("--x", "-3", -5, 9), -3);
  EXPECT_EQ(parse_integer("--x", "9223372036854775807", 0, std::numeric_limits<int64_t>::max()),
            std::numeric_limits<int64_t>::max());
  for (const char* bad : {"", " ", "12abc", "abc", "1.5", "1e3", "0x10", " 1", "1 ", "+1", "--1",
                          "nan", "9223372036854775808", "99999999999999999999", "10", "-1"}) {
    const std::string text = refusal([&] { parse_integer("--x", bad, 0, 9); });
    EXPECT_EQ(text, std::string("--x: '") + bad + "' is not a whole number from 0 to 9");
  }
}

TEST(ParseNumber, RefusesNanInfinityAndTrailingText) {
  EXPECT_EQ(parse_number("--x", "0.25", {}), 0.25);
  EXPECT_EQ(parse_number("--x", "1e-3", {}), 0.001);
  for (const char* bad : {"", "nan", "NaN", "-nan", "inf", "infinity", "1e999", "0x1p3", "0.5x",
                          "1,5", " 1", "1.5", "-0.1", "abc"}) {
    const std::string text = refusal([&] { parse_number("--x", bad, {}); });
    EXPECT_EQ(text, std::string("--x: '") + bad + "' is not a number from 0 to 1");
  }
}

TEST(ParseNumber, SaysItsRangeAsPeopleReadIt) {
  EXPECT_EQ(refusal([] { parse_number("--x", "0", {.max = 1, .above_min = true}); }),
            "--x: '0' is not a number above 0 and at most 1");
  EXPECT_EQ(parse_number("--x", "1e-300", {.above_min = true}), 1e-300);
  EXPECT_EQ(refusal([] { parse_number("--x", "-1", {.max = std::numeric_limits<float>::max()}); }),
            "--x: '-1' is not a number from 0 to 3.4e+38");
}

// Limits of integer types are not printed in digits: "9223372036854775807" is hard to read.
TEST(EveryRange, HasNoNumberOfManyDigits) {
  constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(refusal([] { parse_integer("--x", "y", 0, kMax64); }),
            "--x: 'y' is not a whole number from 0 to 2^63 - 1");
  EXPECT_EQ(refusal([] { parse_integer("--x", "y", 0, kMax32); }),
            "--x: 'y' is not a whole number from 0 to 2^31 - 1");
  EXPECT_EQ(refusal([] { parse_token_count("--x", "y", 1, 1 << 30); }),
            "--x: 'y' is not a number of tokens from 1 to 1024M; write 4096, 32K or 1M");
  EXPECT_EQ(refusal([] { parse_token_count("--x", "y", 1, kMax32); }),
            "--x: 'y' is not a number of tokens from 1 to 2^31 - 1; write 4096, 32K or 1M");
  EXPECT_EQ(refusal([] { parse_byte_size("--x", "2T", size_t{1} << 40); }),
            "--x: '2T' is more than 1024G");
}

TEST(ParseTokenCount, TakesPowersOf1024) {
  EXPECT_EQ(parse_token_count("--x", "4096", 0, 1 << 30), 4096);
  EXPECT_EQ(parse_token_count("--x", "32K", 0, 1 << 30), 32768);
  EXPECT_EQ(parse_token_count("--x", "1m", 0, 1 << 30), 1048576);
  for (const char* bad :
       {"", "K", "1.5K", "32KB", "1G", "9007199254740993M", "-1K", "2000M", "1 K"}) {
    EXPECT_NE(refusal([&] {
                parse_token_count("--x", bad, 0, 1 << 30);
              }).find(std::string("--x: '") + bad + "' is not a number of tokens"),
              std::string::npos)
        << bad;
  }
}

TEST(ParseByteSize, TakesUnitsAndFractions) {
  EXPECT_EQ(parse_byte_size("--x", "0"), 0u);
  EXPECT_EQ(parse_byte_size("--x", "65536"), 65536u);
  EXPECT_EQ(parse_byte_size("--x", "512M"), size_t{512} << 20);
  EXPECT_EQ(parse_byte_size("--x", "4GiB"), size_t{4} << 30);
  EXPECT_EQ(parse_byte_size("--x", "1.5g"), size_t{3} << 29);
  for (const char* bad :
       {"", "G", "4GB", "4P", "-1G", "nan", "nanG", "inf", "1e30", "4G ", "4 G", "iB"}) {
    EXPECT_NE(refusal([&] { parse_byte_size("--x", bad); }).find(std::string("--x: '") + bad + "'"),
              std::string::npos)
        << bad;
  }
}

TEST(ParseBool, TakesTheUsualWords) {
  for (const char* yes : {"1", "true", "TRUE", "yes", "On"}) EXPECT_TRUE(parse_bool("X", yes));
  for (const char* no : {"0", "false", "No", "off"}) EXPECT_FALSE(parse_bool("X", no));
  for (const char* bad : {"", "2", "y", "maybe"}) {
    EXPECT_EQ(refusal([&] { parse_bool("X", bad); }),
              std::string("X: '") + bad + "' is neither yes nor no; write 1 or 0");
  }
}

TEST(SplitList, RefusesEmptyItems) {
  EXPECT_EQ(split_list("--x", "a,b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(split_list("--x", "a"), (std::vector<std::string>{"a"}));
  for (const char* bad : {"", ",", "a,", ",a", "a,,b"}) {
    EXPECT_NE(refusal([&] { split_list("--x", bad); }), "") << bad;
  }
}

}  // namespace
}  // namespace sluice
