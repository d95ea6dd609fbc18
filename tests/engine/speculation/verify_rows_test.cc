// Up to how many rows a verify pass gives the bits of decode steps of one row each.
//
// Drafts are right, so that a pass has k + 1 rows of the text. On the CPU device every number of
// rows must give equal bits. On a GPU the test prints the largest number up to which all did, and
// tokens must be equal or a near tie: there a product of another number of rows adds up in another
// order.
#include <bit>
#include <cstdio>

#include <gtest/gtest.h>

#include "engine/speculation/speculative_engine.h"

namespace sluice {
namespace {

using testing::Job;

constexpr int32_t kMostDrafts = 31;

bool same_bits(const RequestOutput& a, const RequestOutput& b) {
  if (a.token_ids != b.token_ids || a.logprobs.size() != b.logprobs.size()) return false;
  for (size_t step = 0; step < a.logprobs.size(); ++step) {
    const auto is_same = [](const TokenLogprob& x, const TokenLogprob& y) {
      return x.token_id == y.token_id &&
             std::bit_cast<uint32_t>(x.logprob) == std::bit_cast<uint32_t>(y.logprob);
    };
    if (!std::ranges::equal(a.logprobs[step], b.logprobs[step], is_same)) return false;
  }
  return true;
}

// Prints and returns the largest number of rows up to which bits are those of single rows.
int32_t equal_rows(const char* name, const EngineOptions& plain, int64_t prompt_tokens) {
  const std::vector<Job> jobs{
      {testing::random_tokens(prompt_tokens, 1), testing::sampled(2 * kMostDrafts + 2, 1)}};
  const std::vector<RequestOutput> reference = testing::run_engine(plain, jobs);
  const auto texts = testing::texts_of(jobs, reference);
  EngineOptions options = plain;
  options.speculative.method = SpeculativeMethod::kNgram;
  int32_t most_equal = 1;
  std::string others;
  for (int32_t k = 1; k <= kMostDrafts; ++k) {
    options.speculative.num_tokens = k;
    const auto engine = testing::make_engine(
        options, std::make_unique<testing::KnownTexts>(texts, [](int64_t) { return true; }));
    const std::vector<RequestOutput> outputs = testing::run_jobs(*engine, jobs);
    const std::string rows = std::to_string(k + 1) + " rows";
    testing::expect_all_alike(outputs, reference, std::string(name) + ", " + rows);
    EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0) << rows;
    if (!same_bits(outputs[0], reference[0])) {
      others += " " + std::to_string(k + 1);
    } else if (most_equal == k) {
      most_equal = k + 1;
    }
  }
  std::printf("%s, %ld tokens: equal bits up to %d rows; other bits with:%s\n", name, prompt_tokens,
              most_equal, others.empty() ? " none" : others.c_str());
  return most_equal;
}

TEST(VerifyRows, HaveTheBitsOfSingleRows) {
  for (const char* name : {"resident", "chunked"}) {
    const testing::Place place = testing::place_of(name);
    const EngineOptions plain = place.put(testing::tiny_options(testing::kSpeculationModel));
    const int32_t most = equal_rows(place.name, plain, 61);
    if (testing::testing_cpu()) {
      EXPECT_EQ(most, kMostDrafts + 1) << place.name;
    }
  }
}

}  // namespace
}  // namespace sluice
