// Strict parsers of option values.
#include "text/value_parsers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/core.h>

#include "core/error.h"

namespace sluice {
namespace {

// A number at the start of a text, and the number of characters it took.
template <typename T>
struct Prefix {
  T value{};
  size_t num_chars = 0;
};

// Empty if the text starts with no number or with one out of the type's range.
template <typename T>
std::optional<Prefix<T>> read_prefix(std::string_view text) {
  Prefix<T> prefix;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), prefix.value);
  if (status != std::errc()) return std::nullopt;
  prefix.num_chars = static_cast<size_t>(end - text.data());
  return prefix;
}

// 1024^n for "K", "M", "G", "T" in either case, 1 for "", empty for anything else.
std::optional<int64_t> unit_factor(std::string_view unit) {
  if (unit.empty()) return 1;
  if (unit.size() > 1) return std::nullopt;
  // Clearing bit 0x20 turns an ASCII letter into upper case.
  const size_t power = std::string_view("KMGT").find(static_cast<char>(unit[0] & ~0x20));
  if (power == std::string_view::npos) return std::nullopt;
  return int64_t{1} << (10 * (power + 1));
}

// ASCII only, whatever the locale.
std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return result;
}

// An integer, with the limits of types as powers: "2^63 - 1".
std::string describe_integer(int64_t value) {
  if (value == std::numeric_limits<int64_t>::max()) return "2^63 - 1";
  if (value == std::numeric_limits<int32_t>::max()) return "2^31 - 1";
  return std::to_string(value);
}

// "32K", "16M". 2^30 tokens are "1024M", since tokens have no larger unit.
std::string describe_tokens(int64_t tokens) {
  constexpr int64_t kMega = int64_t{1} << 20;
  if (tokens >= kMega && tokens % kMega == 0) return fmt::format("{}M", tokens / kMega);
  if (tokens >= 1024 && tokens % 1024 == 0) return fmt::format("{}K", tokens / 1024);
  return describe_integer(tokens);
}

// In GiB where that is exact, else in bytes.
std::string describe_bytes(size_t bytes) {
  constexpr size_t kGiga = size_t{1} << 30;
  return bytes % kGiga == 0 ? fmt::format("{}G", bytes / kGiga) : std::to_string(bytes);
}

// "from 0 to 1", or "above 0 and at most 1".
std::string describe(const NumberRange& range) {
  const auto text = [](double value) { return fmt::format("{:.3g}", value); };
  if (range.above_min)
    return fmt::format("above {} and at most {}", text(range.min), text(range.max));
  return fmt::format("from {} to {}", text(range.min), text(range.max));
}

[[noreturn]] void refuse_integer(std::string_view option, std::string_view text, int64_t min,
                                 int64_t max) {
  fail(ErrorCode::kInvalidArgument, "{}: '{}' is not a whole number from {} to {}", option, text,
       describe_integer(min), describe_integer(max));
}

}  // namespace

int64_t parse_integer(std::string_view option, std::string_view text, int64_t min, int64_t max) {
  const auto prefix = read_prefix<int64_t>(text);
  if (!prefix || prefix->num_chars != text.size() || prefix->value < min || prefix->value > max) {
    refuse_integer(option, text, min, max);
  }
  return prefix->value;
}

double parse_number(std::string_view option, std::string_view text, const NumberRange& range) {
  const auto prefix = read_prefix<double>(text);
  // from_chars accepts "nan" and "inf"; isfinite refuses both.
  const bool usable = prefix && prefix->num_chars == text.size() && std::isfinite(prefix->value) &&
                      prefix->value >= range.min && prefix->value <= range.max &&
                      !(range.above_min && prefix->value == range.min);
  if (!usable) {
    fail(ErrorCode::kInvalidArgument, "{}: '{}' is not a number {}", option, text, describe(range));
  }
  return prefix->value;
}

int64_t parse_token_count(std::string_view option, std::string_view text, int64_t min,
                          int64_t max) {
  const auto prefix = read_prefix<int64_t>(text);
  const auto factor = prefix ? unit_factor(text.substr(prefix->num_chars)) : std::nullopt;
  int64_t tokens = 0;
  // Units up to M, and no product that overflows.
  const bool usable = factor && *factor <= int64_t{1} << 20 &&
                      !__builtin_mul_overflow(prefix->value, *factor, &tokens) && tokens >= min &&
                      tokens <= max;
  if (!usable) {
    fail(ErrorCode::kInvalidArgument,
         "{}: '{}' is not a number of tokens from {} to {}; write 4096, 32K or 1M", option, text,
         describe_tokens(min), describe_tokens(max));
  }
  return tokens;
}

size_t parse_byte_size(std::string_view option, std::string_view text, size_t max) {
  const auto prefix = read_prefix<double>(text);
  std::string_view unit = prefix ? text.substr(prefix->num_chars) : std::string_view();
  // "GiB" means the same as "G".
  if (unit.size() > 1 && unit.ends_with("iB")) unit.remove_suffix(2);
  const auto factor = unit_factor(unit);
  // -1 and NaN both fail the comparison below.
  const double bytes = prefix && factor ? prefix->value * static_cast<double>(*factor) : -1;
  if (!(bytes >= 0 && bytes <= static_cast<double>(kMaxByteSize))) {
    fail(ErrorCode::kInvalidArgument, "{}: '{}' is not a size; write 512M, 4G or a number of bytes",
         option, text);
  }
  if (bytes > static_cast<double>(max)) {
    fail(ErrorCode::kInvalidArgument, "{}: '{}' is more than {}", option, text,
         describe_bytes(max));
  }
  return static_cast<size_t>(bytes);
}

bool parse_bool(std::string_view option, std::string_view text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") return true;
  if (word == "0" || word == "false" || word == "no" || word == "off") return false;
  fail(ErrorCode::kInvalidArgument, "{}: '{}' is neither yes nor no; write 1 or 0", option, text);
}

std::vector<std::string> split_list(std::string_view option, std::string_view text) {
  std::vector<std::string> items;
  size_t begin = 0;
  // Runs once more at the end of the text, so "a," has an empty last item.
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) {
      fail(ErrorCode::kInvalidArgument, "{}: '{}' has an empty item; write a,b,c", option, text);
    }
    items.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

std::vector<int32_t> parse_token_ids(std::string_view option, std::string_view text) {
  std::vector<int32_t> ids;
  for (const std::string& item : split_list(option, text)) {
    ids.push_back(
        static_cast<int32_t>(parse_integer(option, item, 0, std::numeric_limits<int32_t>::max())));
  }
  return ids;
}

std::map<int32_t, float> parse_token_biases(std::string_view option, std::string_view text,
                                            const NumberRange& range) {
  std::map<int32_t, float> biases;
  for (const std::string& item : split_list(option, text)) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      fail(ErrorCode::kInvalidArgument, "{}: '{}' is not a token id, '=' and a number, as in 7=1.5",
           option, item);
    }
    const std::string_view number = std::string_view(item).substr(equals + 1);
    const int64_t id = parse_integer(option, std::string_view(item).substr(0, equals), 0,
                                     std::numeric_limits<int32_t>::max());
    const double bias = number == "-inf" ? -std::numeric_limits<double>::infinity()
                                         : parse_number(option, number, range);
    if (!biases.emplace(static_cast<int32_t>(id), static_cast<float>(bias)).second) {
      fail(ErrorCode::kInvalidArgument, "{}: token id {} comes twice; give one number", option, id);
    }
  }
  return biases;
}

}  // namespace sluice
