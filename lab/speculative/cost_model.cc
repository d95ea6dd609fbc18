// The sum of a geometric series, and its inverse by bisection.
#include "lab/speculative/cost_model.h"

#include <cmath>

namespace sluice::lab {

double expected_tokens(double acceptance, double num_drafts) {
  // Near 1 the quotient loses its digits; the series does not differ from its length there.
  if (1 - acceptance < 1e-9) return num_drafts + 1;
  return (1 - std::pow(acceptance, num_drafts + 1)) / (1 - acceptance);
}

double fitted_acceptance(double tokens_per_step, double num_drafts) {
  if (tokens_per_step <= 1) return 0;
  if (tokens_per_step >= num_drafts + 1) return 1;
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {  // to the last bit of a double
    const double middle = (low + high) / 2;
    (expected_tokens(middle, num_drafts) < tokens_per_step ? low : high) = middle;
  }
  return low;
}

double predicted_rate(double acceptance, double num_drafts, const StepTimes& times) {
  return expected_tokens(acceptance, num_drafts) /
         (times.verify_seconds + num_drafts * times.draft_seconds);
}

}  // namespace sluice::lab
