// Formats numbers for people: sizes, counts, durations, with about three significant digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace sluice::cli {

std::string format_bytes(double bytes);      // "1.50 GiB", "512 B"
std::string format_tokens(int64_t tokens);   // "32K" for multiples of 1024, else "4000"
std::string format_count(double count);      // "7.0 M", "596 M", "12"
std::string format_seconds(double seconds);  // "1.24 s", "83 ms", "3 min 05 s"
std::string format_percent(double share);    // "98.3 %"

}  // namespace sluice::cli
