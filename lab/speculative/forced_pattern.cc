// Quantiles at multiples of the golden ratio: any consecutive ones are spread evenly over (0, 1).
#include "lab/speculative/forced_pattern.h"

#include <algorithm>
#include <cmath>

namespace sluice::lab {
namespace {

constexpr double kGoldenRatio = 0.6180339887498949;
constexpr double kSeedStep = 0.7548776662466927;  // shares no period with it

double fraction(double value) { return value - std::floor(value); }

}  // namespace

ForcedPattern::ForcedPattern(double rate, int64_t seed)
    : rate_(rate), next_quantile_(fraction(0.5 + kSeedStep * static_cast<double>(seed))) {}

// P(n tokens or more are accepted before a rejection) = rate^n.
bool ForcedPattern::accepts(int64_t position) {
  if (rate_ <= 0 || rate_ >= 1) return rate_ >= 1;
  while (rejections_.empty() || rejections_.back() < position) {
    const double quantile = std::max(next_quantile_, 1e-12);
    const auto accepted = static_cast<int64_t>(std::log(quantile) / std::log(rate_));
    rejections_.push_back((rejections_.empty() ? -1 : rejections_.back()) + 1 + accepted);
    next_quantile_ = fraction(next_quantile_ + kGoldenRatio);
  }
  return !std::binary_search(rejections_.begin(), rejections_.end(), position);
}

}  // namespace sluice::lab
