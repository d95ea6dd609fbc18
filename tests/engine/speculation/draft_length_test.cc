// The automatic length of drafts, on simulated times: it comes close to the best fixed length, and
// costs little where no draft pays.
#include "engine/speculation/draft_length.h"

#include <cmath>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "engine/speculation/hostile_drafts.h"

namespace sluice {
namespace {

// Times of a machine, in nanoseconds, and how likely a draft token is accepted.
struct Machine {
  std::function<double(int64_t num_rows)> pass_ns;
  double draft_ns = 0;
  double acceptance = 0;
};

// Generates `num_tokens` tokens of one sequence; returns nanoseconds for each. A fixed length of
// -1: the automatic one.
double ns_per_token(const Machine& machine, DraftKind kind, int64_t fixed, int64_t num_tokens) {
  DraftLength length(32);
  AcceptanceRate rate;
  double total_ns = 0;
  int64_t position = 0;
  while (position < num_tokens) {
    const int64_t k = fixed >= 0 ? fixed : length.choose(kind, rate, 1, 1);
    for (int64_t i = 0; i < k; ++i) length.drafted(static_cast<int64_t>(machine.draft_ns));
    const double pass_ns = machine.pass_ns(1 + k);
    length.verified(1 + k, static_cast<int64_t>(pass_ns));
    total_ns += pass_ns + static_cast<double>(k) * machine.draft_ns;
    int64_t accepted = 0;
    const auto is_accepted = [&](int64_t at) {
      return static_cast<double>(testing::scramble(at) % 10000) < machine.acceptance * 10000;
    };
    while (accepted < k && is_accepted(position + accepted)) ++accepted;
    position += accepted + 1;
    if (k == 0) continue;
    rate.add(k, accepted);
    length.judged(kind, k, accepted);
  }
  return total_ns / static_cast<double>(position);
}

double best_fixed(const Machine& machine, DraftKind kind, int64_t num_tokens) {
  double best = ns_per_token(machine, kind, 0, num_tokens);
  for (int64_t k = 1; k <= 32; ++k) {
    best = std::min(best, ns_per_token(machine, kind, k, num_tokens));
  }
  return best;
}

// A verify pass that reads KV over a link, whatever its rows: long drafts pay.
TEST(DraftLength, IsCloseToTheBestFixedOne) {
  for (const double acceptance : {0.3, 0.6, 0.8, 0.9, 0.95}) {
    for (const double draft_ns : {0.0, 8e6, 30e6, 100e6}) {
      const Machine machine{
          .pass_ns = [](int64_t rows) { return 307e6 + 0.2e6 * static_cast<double>(rows); },
          .draft_ns = draft_ns,
          .acceptance = acceptance};
      const DraftKind kind = draft_ns > 0 ? DraftKind::kSparse : DraftKind::kSource;
      const double best = best_fixed(machine, kind, 3000);
      EXPECT_LT(ns_per_token(machine, kind, -1, 3000), 1.05 * best)
          << acceptance << ", " << draft_ns;
    }
  }
}

// A pass whose time grows with its rows: short drafts pay, if any.
TEST(DraftLength, FollowsTheCostOfRows) {
  for (const double acceptance : {0.5, 0.8, 0.95}) {
    for (const double row_ns : {0.02e6, 0.1e6, 0.5e6}) {
      const Machine machine{
          .pass_ns = [=](int64_t rows) { return 3e6 + row_ns * static_cast<double>(rows); },
          .draft_ns = 0,
          .acceptance = acceptance};
      const double best = best_fixed(machine, DraftKind::kSource, 3000);
      EXPECT_LT(ns_per_token(machine, DraftKind::kSource, -1, 3000), 1.05 * best)
          << acceptance << ", " << row_ns;
    }
  }
}

// Nothing is accepted, or a draft costs as much as the pass that it would save.
TEST(DraftLength, CostsLittleWhereItCannotWin) {
  for (const double acceptance : {0.0, 0.05, 0.9}) {
    const Machine machine{
        .pass_ns = [](int64_t rows) { return 3e6 * (1 + 0.1 * static_cast<double>(rows - 1)); },
        .draft_ns = 2.9e6,
        .acceptance = acceptance};
    const double plain = ns_per_token(machine, DraftKind::kSparse, 0, 20000);
    EXPECT_LT(ns_per_token(machine, DraftKind::kSparse, -1, 20000), 1.02 * plain) << acceptance;
  }
}

// The first step of a shape takes 50 times as long, as where kernels are loaded. A draft pass costs
// as much as a step, so no draft pays.
TEST(DraftLength, IsNotMisledByColdStarts) {
  DraftLength length(16);
  AcceptanceRate rate;
  std::set<int64_t> seen;
  int64_t num_drafted = 0;
  for (int step = 0; step < 2000; ++step) {
    const int64_t k = length.choose(DraftKind::kSparse, rate, 1, 1);
    const bool is_cold = seen.insert(k).second;
    for (int64_t i = 0; i < k; ++i) length.drafted(5000);
    length.verified(1 + k, is_cold ? 250'000 : 5000 + 100 * k);
    if (k == 0) continue;
    num_drafted += k;
    rate.add(k, k * 3 / 4);
    length.judged(DraftKind::kSparse, k, k * 3 / 4);
  }
  EXPECT_LT(num_drafted, 100);
}

// Turned off by drafts that were wrong, it finds out that they are right now.
TEST(DraftLength, ProbesWhenItIsOff) {
  DraftLength length(16);
  AcceptanceRate rate;
  int64_t num_off = 0, num_steps = 0;
  while (num_steps < 5000) {
    const bool right = num_steps >= 1000;
    const int64_t k = length.choose(DraftKind::kSource, rate, 1, 1);
    length.verified(1 + k, 1000 + 300 * k);
    ++num_steps;
    EXPECT_TRUE(num_steps != 1000 || k == 0);
    if (k == 0) {
      num_off += right ? 1 : 0;
      continue;
    }
    rate.add(k, right ? k : 0);
    length.judged(DraftKind::kSource, k, right ? k : 0);
  }
  EXPECT_LT(num_off, 2500);
  EXPECT_GT(length.choose(DraftKind::kSource, rate, 1, 1), 0);
}

}  // namespace
}  // namespace sluice
