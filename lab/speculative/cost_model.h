// The cost model of speculation: what drafts of k tokens bring, from how often a token is accepted
// and how long passes take.
//
// Used by `sluice-lab speculative`, which prints it beside what it measured. Source: Leviathan et
// al. 2023, arXiv 2211.17192, section 3. Thread rule: pure functions.
#pragma once

namespace sluice::lab {

// Times of the passes of one step.
struct StepTimes {
  double verify_seconds = 0;  // of the pass that verifies, and of everything else but drafts
  double draft_seconds = 0;   // of one draft token
};

// Tokens that a step gives in the mean if each of its drafts is accepted with this probability,
// whatever the others are: (1 - a^(k + 1)) / (1 - a), and k + 1 for a = 1. `num_drafts` is k, which
// may be a mean and no whole number.
double expected_tokens(double acceptance, double num_drafts);

// The acceptance that expected_tokens gives `tokens_per_step` for; 0 for one token or fewer, 1 for
// num_drafts + 1 or more.
double fitted_acceptance(double tokens_per_step, double num_drafts);

// Tokens per second: expected_tokens over verify_seconds + num_drafts * draft_seconds.
double predicted_rate(double acceptance, double num_drafts, const StepTimes& times);

}  // namespace sluice::lab
