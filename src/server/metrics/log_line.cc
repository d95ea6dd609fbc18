#include "server/metrics/log_line.h"

#include <algorithm>
#include <cmath>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "core/printable.h"
#include "io/json_type.h"

namespace sluice::metrics {

std::string log_time_text(LogTime time) {
  const auto second = std::chrono::floor<std::chrono::seconds>(time);
  const auto part = std::chrono::floor<std::chrono::milliseconds>(time - second);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(second)), part.count());
}

std::string log_word(std::string_view text) {
  constexpr size_t kMaxChars = 128;
  std::string word = printable(text, kMaxChars);
  if (word.empty()) return "-";
  std::replace(word.begin(), word.end(), ' ', '?');
  return word;
}

nlohmann::ordered_json log_object(LogTime time, std::string_view event) {
  nlohmann::ordered_json object;
  object["time"] = log_time_text(time);
  object["event"] = event;
  return object;
}

std::string log_json_line(const nlohmann::ordered_json& object) {
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string warning_json(LogTime time, std::string_view warning) {
  nlohmann::ordered_json object = log_object(time, "warning");
  object["warning"] = warning;
  return log_json_line(object);
}

double log_seconds(double seconds) {
  constexpr double kMicros = 1e6;
  return std::round(seconds * kMicros) / kMicros;
}

}  // namespace sluice::metrics
