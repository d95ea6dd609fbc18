#include "server/http/router.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/hex.h"
#include "core/printable.h"

namespace sluice::http {
namespace {

std::optional<std::string> decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_value(text[i + 1]);
    const int low = hex_value(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

// What the pattern captures, or nothing if the path does not fit.
std::optional<std::vector<std::string>> match(const std::vector<std::string>& pattern,
                                              const std::vector<std::string>& path) {
  std::vector<std::string> captures;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (i >= path.size()) return std::nullopt;
    // A name that was forgotten; the slash at the end alone would else look like an empty one.
    if (pattern[i].starts_with('{') && path[i].empty()) return std::nullopt;
    if (pattern[i] == "{*}") {
      captures.push_back(
          fmt::format("{}", fmt::join(path.begin() + static_cast<ptrdiff_t>(i), path.end(), "/")));
      return captures;
    }
    if (pattern[i] == "{}") {
      captures.push_back(path[i]);
    } else if (pattern[i] != path[i]) {
      return std::nullopt;
    }
  }
  if (path.size() != pattern.size()) return std::nullopt;
  return captures;
}

}  // namespace

void Router::add(std::string method, std::string_view pattern, Handler handler, FaultBody faults) {
  routes_.push_back(
      {std::move(method), std::string(pattern), split(pattern), std::move(handler), faults});
}

Router::Segments Router::split(std::string_view path) {
  Segments segments;
  for (size_t at = 1; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    segments.emplace_back(path.substr(at, end - at));
    at = end + 1;
  }
  return segments;
}

std::optional<Router::Segments> Router::segments_of(std::string_view path) const {
  Segments segments = split(path);
  for (std::string& segment : segments) {
    auto decoded = decode(segment);
    if (!decoded) return std::nullopt;
    segment = std::move(*decoded);
  }
  if (prefix_.empty() || route_of(segments) != nullptr) return segments;
  Segments longer = prefix_;
  longer.insert(longer.end(), segments.begin(), segments.end());
  return route_of(longer) == nullptr ? segments : longer;
}

// The first route of the path, whatever its method is; null: there is none.
const Router::Route* Router::route_of(const Segments& segments) const {
  const auto found = std::ranges::find_if(
      routes_, [&](const Route& route) { return match(route.segments, segments).has_value(); });
  return found == routes_.end() ? nullptr : &*found;
}

const Router::Route* Router::route_of(std::string_view path) const {
  const auto segments = segments_of(path);
  return segments ? route_of(*segments) : nullptr;
}

FaultBody Router::faults_of(std::string_view path) const {
  const Route* route = route_of(path);
  return route == nullptr ? fault_body : route->faults;
}

std::variant<Router::Match, Fault> Router::find(std::string_view method,
                                                std::string_view path) const {
  const auto decoded = segments_of(path);
  if (!decoded) {
    return Fault{
        .status = 400,
        .message = fmt::format("the path \"{}\" is not percent-encoded rightly", printable(path))};
  }
  const std::vector<std::string>& segments = *decoded;
  std::vector<std::string> allowed;
  for (const Route& route : routes_) {
    auto captures = match(route.segments, segments);
    if (!captures) continue;
    if (route.method == method) {
      return Match{&route.handler, std::move(*captures), route.pattern};
    }
    if (std::find(allowed.begin(), allowed.end(), route.method) == allowed.end()) {
      allowed.push_back(route.method);
    }
  }
  if (allowed.empty()) {
    return Fault{.status = 404, .message = fmt::format("there is no path {}", printable(path))};
  }
  const std::string allow = fmt::format("{}", fmt::join(allowed, ", "));
  return Fault{.status = 405,
               .message = fmt::format("{} is not allowed for {}; use {}", printable(method),
                                      printable(path), allow),
               .fields = {{"Allow", allow}}};
}

std::vector<Router::Name> Router::names() const {
  std::vector<Name> names;
  for (const Route& route : routes_) names.push_back({route.method, route.pattern});
  return names;
}

std::string_view Router::pattern_of(std::string_view path) const {
  const Route* route = route_of(path);
  return route == nullptr ? std::string_view() : route->pattern;
}

}  // namespace sluice::http
