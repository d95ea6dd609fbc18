// Random options of sparse policies: each set is refused with an error that names an option, or
// makes policies that run.
//
// Reveals: values that no range excludes and an op, a plan or a sum cannot take; pairs of options
// that contradict each other unnoticed.
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "attention/policy_rig.h"
#include "core/error.h"
#include "support/seeds.h"

namespace sluice {
namespace {

using testing::PolicyRig;

class RandomOptions {
 public:
  explicit RandomOptions(uint64_t seed) : generator_(seed) {}

  std::string policy() {
    return pick({"sampled+full", "sampled+quest", "xattention+quest", "avgpool+full",
                 "minference+full", "minference+quest", "flexprefill+full", "streaming",
                 "full+quest", "full"});
  }

  // Up to four options, most of them any option, with values inside, at and beyond their ranges.
  SparseOptions options() {
    SparseOptions options;
    const size_t count = generator_() % 5;
    for (size_t i = 0; i < count; ++i) {
      // The first row is the policy's name.
      const auto& row = kSparseOptionRows[1 + generator_() % (kSparseOptionRows.size() - 1)];
      row.set(options, value(row.facts));
    }
    return options;
  }

 private:
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[generator_() % values.size()];
  }
  std::string pick(std::initializer_list<const char*> values) {
    return values.begin()[generator_() % values.size()];
  }

  OptionValue value(const OptionFacts& facts) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    switch (facts.kind) {
      case OptionKind::kFlag:
        return true;
      case OptionKind::kNumber:
        return pick({0.0, 1e-300, 1e-9, 0.1, 0.5, 0.9, 1.0 - 1e-12, 1.0, 1.0 + 1e-9, 2.0, -0.1,
                     kNan, kInfinity, -kInfinity});
      case OptionKind::kChoice:
        return static_cast<int64_t>(generator_() % facts.choices.size());
      case OptionKind::kText:
        return std::string("/no/such/profile.json");
      default:
        return pick<int64_t>({0,    1,    2,       3,       4,   8,         16,       32,
                              64,   100,  127,     128,     129, 384,       1000,     1024,
                              4096, 8192, 1 << 20, 1 << 30, -1,  INT32_MIN, INT32_MAX});
    }
  }

  std::mt19937_64 generator_;
};

// A prompt of three tiles and some rows, and a decode step after it.
void expect_runs(std::unique_ptr<PolicyPair> policies) {
  constexpr int32_t kTokens = 3 * kMaskTileTokens + 40;
  PolicyRig rig(std::move(policies), kMaskTileTokens);
  for (const auto& out :
       {rig.run(Phase::kPrefill, {{0, 0, kTokens}}), rig.run(Phase::kDecode, {{0, kTokens, 1}})}) {
    for (const BFloat16 value : out) ASSERT_TRUE(std::isfinite(static_cast<float>(value)));
  }
}

TEST(RandomSparseOptions, AreRefusedByNameOrRun) {
  int num_refused = 0, num_run = 0;
  for (const uint64_t seed : testing::test_seeds(600)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomOptions random(seed);
    const std::string policy = random.policy();
    const SparseOptions options = random.options();
    try {
      expect_runs(make_policies(policy, options));
      ++num_run;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.message();
      EXPECT_NE(error.message().find("sparse_"), std::string::npos) << error.message();
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused + num_run, 0);
  if (num_refused + num_run < 100) return;  // one seed alone
  EXPECT_GT(num_refused, 50);
  EXPECT_GT(num_run, 50);
}

}  // namespace
}  // namespace sluice
