#include "server/metrics/bucket_bounds.h"

namespace sluice::metrics {

std::vector<double> latency_bounds() {
  return {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
}

std::vector<double> first_token_bounds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
          1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
}

std::vector<double> token_interval_bounds() {
  return {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
          0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
}

std::vector<double> choice_bounds() { return {1, 2, 5, 10, 20}; }

std::vector<double> token_bounds(int64_t max_len) {
  std::vector<double> bounds;
  for (int64_t power = 1; power <= max_len; power *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      if (digit * power <= max_len) bounds.push_back(static_cast<double>(digit * power));
    }
  }
  return bounds;
}

}  // namespace sluice::metrics
