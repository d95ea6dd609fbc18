// Three significant digits, in the largest unit with a value of at least one.
#include "cli/units.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace sluice::cli {

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  // Bytes have no fraction.
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : bytes < 100 ? 1 : 0, kUnits[unit]);
}

std::string format_tokens(int64_t tokens) {
  constexpr int64_t kMega = int64_t{1} << 20;
  if (tokens >= kMega && tokens % kMega == 0) return fmt::format("{}M", tokens / kMega);
  if (tokens >= 1024 && tokens % 1024 == 0) return fmt::format("{}K", tokens / 1024);
  return fmt::format("{}", tokens);
}

std::string format_count(double count) {
  constexpr std::array<const char*, 5> kUnits = {"", " K", " M", " B", " T"};
  size_t unit = 0;
  while (count >= 1000 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  const int digits = unit == 0 || count >= 100 ? 0 : count >= 10 ? 1 : 2;
  return fmt::format("{:.{}f}{}", count, digits, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds >= 60) {
    const int64_t whole = std::llround(seconds);
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  if (seconds >= 10) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{:.{}f} ms", seconds * 1e3, seconds >= 0.1 ? 0 : seconds >= 0.01 ? 1 : 2);
}

std::string format_percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace sluice::cli
