#include "cli/bench/serve/scenario.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice::cli {

// The nearest rank: no value between two that were measured.
double quantile(std::vector<double> values, double share) {
  SLUICE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

std::string short_seconds(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

double tokens_per_second(const std::vector<Completion::Arrival>& arrivals, LoadTime from,
                         LoadTime to) {
  int64_t num_tokens = 0;
  for (const Completion::Arrival& arrival : arrivals) {
    if (arrival.time > from && arrival.time <= to) num_tokens += arrival.num_tokens;
  }
  return static_cast<double>(num_tokens) / seconds_between(from, to);
}

// An arrival after `to` ends the last gap, which is cut there.
double longest_gap(const std::vector<Completion::Arrival>& arrivals, LoadTime from, LoadTime to) {
  double longest = 0;
  LoadTime last = from;
  for (const Completion::Arrival& arrival : arrivals) {
    if (arrival.time <= from) continue;
    longest = std::max(longest, seconds_between(last, std::min(arrival.time, to)));
    last = arrival.time;
    if (last >= to) return longest;
  }
  return std::max(longest, seconds_between(last, to));
}

// The first token belongs to the prompt's prefill, so the parts are of the others.
std::vector<double> token_seconds_by_part(const std::vector<Completion::Arrival>& arrivals,
                                          size_t num_parts) {
  std::vector<int64_t> ends;  // tokens with each event
  for (const Completion::Arrival& arrival : arrivals) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + arrival.num_tokens);
  }
  const int64_t num_steps = ends.back() - 1;
  const auto parts = static_cast<int64_t>(num_parts);
  SLUICE_CHECK(num_steps >= parts);
  const auto time_of = [&](int64_t token) {
    return arrivals[static_cast<size_t>(std::ranges::lower_bound(ends, token) - ends.begin())].time;
  };
  std::vector<double> seconds;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = 1 + num_steps * part / parts, last = 1 + num_steps * (part + 1) / parts;
    seconds.push_back(seconds_between(time_of(first), time_of(last)) /
                      static_cast<double>(last - first));
  }
  return seconds;
}

}  // namespace sluice::cli
