// The bounds of histogram buckets: those of vLLM, so that dashboards made for it fit.
//
// Used by RequestMetrics. Thread rule: constants and a free function.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::metrics {

std::vector<double> latency_bounds();               // seconds: 0.3 to 7680, phases of requests
std::vector<double> first_token_bounds();           // seconds: 0.001 to 2560
std::vector<double> token_interval_bounds();        // seconds: 0.01 to 80
std::vector<double> choice_bounds();                // of `n`: 1 to 20
std::vector<double> token_bounds(int64_t max_len);  // 1, 2, 5, 10, 20, 50, ... up to max_len

}  // namespace sluice::metrics
