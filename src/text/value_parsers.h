// Strict parsers of option values: the whole text must match, and no value is rounded or wrapped.
//
// Used by option_text.cc and the declare functions of the command line. Each takes the option's
// name first, so that its error names the option, the value and what is allowed. Thread rule: pure
// functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Errors of all functions: kInvalidArgument.

// "17", "-3". Refuses "", "+1", "1e3", "0x10", " 1", "12abc" and values outside int64 or [min,
// max].
int64_t parse_integer(std::string_view option, std::string_view text, int64_t min, int64_t max);

// A range of numbers; errors print it as "from 0 to 1" or "above 0 and at most 1".
struct NumberRange {
  double min = 0;
  double max = 1;
  bool above_min = false;  // `min` itself is not allowed
};

// "0.7", "1e-3". Refuses "nan", "inf", hexadecimal, trailing text and overflow.
double parse_number(std::string_view option, std::string_view text, const NumberRange& range);

// A count of tokens: "4096", "32K", "1M" (powers of 1024).
int64_t parse_token_count(std::string_view option, std::string_view text, int64_t min, int64_t max);

// A size in bytes: "4G", "512M", "1.5G", "4GiB", "65536" (powers of 1024). At most `max`.
inline constexpr size_t kMaxByteSize = size_t{1} << 60;
size_t parse_byte_size(std::string_view option, std::string_view text, size_t max = kMaxByteSize);

// "1", "true", "yes", "on" and their opposites, in any case; environment variables set flags so.
bool parse_bool(std::string_view option, std::string_view text);

// The items of "a,b,c". Refuses an empty list and empty items.
std::vector<std::string> split_list(std::string_view option, std::string_view text);

// "1,2,3". Refuses items that are no whole number from 0 to 2^31 - 1.
std::vector<int32_t> parse_token_ids(std::string_view option, std::string_view text);

// "7=1.5,9=-inf": numbers by token id, in `range` or "-inf". Refuses an id that comes twice.
std::map<int32_t, float> parse_token_biases(std::string_view option, std::string_view text,
                                            const NumberRange& range);

}  // namespace sluice
