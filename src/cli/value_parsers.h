// Strict readings of option values: the whole text, nothing rounded, nothing wrapped.
//
// Used by options.cc for every value of the command line and of the environment. Each function
// takes the option's name first, so that its error names the option, the value and what is allowed.
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

// Errors of all: kInvalidArgument.

// "17", "-3". Refuses "", "+1", "1e3", "0x10", " 1", "12abc" and what int64 cannot hold.
int64_t parse_integer(std::string_view option, std::string_view text, int64_t min, int64_t max);

// "0.7", "1e-3". Refuses "nan", "inf", hexadecimal, trailing text and what overflows.
double parse_number(std::string_view option, std::string_view text, double min, double max);

// A count of tokens: "4096", "32K", "1M" (powers of 1024).
int64_t parse_token_count(std::string_view option, std::string_view text, int64_t min, int64_t max);

// A size: "4G", "512M", "1.5G", "4GiB", "65536" (powers of 1024). At most 2^60.
size_t parse_byte_size(std::string_view option, std::string_view text);

// "1", "true", "yes", "on" and their opposites, in any case: how the environment sets a flag.
bool parse_bool(std::string_view option, std::string_view text);

// The items of "a,b,c". Refuses an empty list and empty items.
std::vector<std::string> split_list(std::string_view option, std::string_view text);

}  // namespace sluice::cli
