#include "server/metrics/exposition.h"

#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "io/json_type.h"

namespace sluice::metrics {
namespace {

// Writing a string as JSON replaces what is not UTF-8; reading it back undoes the escapes.
std::string valid_utf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string json =
      Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(json).get<std::string>();
}

// In help texts a quote is itself.
std::string escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || (quotes && c == '"')) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string value_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

std::string bound_text(double bound) {
  constexpr double kFirstWithExponent = 1e6;
  std::array<char, 32> digits;
  const auto format =
      bound < kFirstWithExponent ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bound, format).ptr;
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

Labels& Labels::add(std::string_view name, std::string_view value) {
  if (!text_.empty()) text_ += ',';
  text_.append(name).append("=\"").append(escaped(valid_utf8(value), true)).append("\"");
  return *this;
}

void Exposition::begin(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(help, false), name, type);
}

void Exposition::append(std::string_view suffix, const Labels& own, double value) {
  text_.append(name_).append(suffix);
  const std::string& first = common_.text();
  const bool both = !first.empty() && !own.text().empty();
  if (!first.empty() || !own.text().empty()) {
    text_.append("{").append(first).append(both ? "," : "").append(own.text()).append("}");
  }
  text_.append(" ").append(value_text(value)).append("\n");
}

void Exposition::sample(double value, const Labels& own) { append("", own, value); }

void Exposition::histogram(std::string_view name, std::string_view help,
                           const Histogram::Reading& reading) {
  begin(name, "histogram", help);
  const auto bucket = [&](std::string_view bound, int64_t count) {
    append("_bucket", Labels().add("le", bound), static_cast<double>(count));
  };
  for (size_t i = 0; i < reading.bounds.size(); ++i) {
    bucket(bound_text(reading.bounds[i]), reading.cumulative[i]);
  }
  bucket("+Inf", reading.count);
  append("_sum", {}, reading.sum);
  append("_count", {}, static_cast<double>(reading.count));
}

}  // namespace sluice::metrics
