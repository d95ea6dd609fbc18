// Sampling: the generator's published vectors, every filter against brute force, the distribution
// against chi-square, and independence of the batch.
#include "ops/reference/sample.h"

#include <algorithm>
#include <map>

#include "ops/philox.h"
#include "ops/sample/sample_rig.h"

namespace sluice::testing {
namespace {

// The test vectors that the authors publish with their implementation (Random123, kat_vectors).
TEST(Philox, GivesThePublishedNumbers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sample, GreedyTakesTheLowestOfTheLargest) {
  Machine machine;
  std::vector<float> logits(100, -1.0f);
  logits[40] = logits[17] = logits[99] = 2.5f;
  const SampleArgs args = make_args(machine, logits, {{.temperature = 0.0f}});
  run(machine, args);
  EXPECT_EQ(args.token_ids.data<int32_t>()[0], 17);
}

// Draws from rows of `vocab` random logits with random parameters; returns how many rows could be
// compared with brute force.
int compare_with_brute_force(uint32_t round, int64_t vocab, std::mt19937& generator) {
  Machine machine;
  const int64_t m = 16;
  std::vector<float> logits = random_logits(m * vocab, round, round % 3 == 0 ? 0.3f : 4.0f);
  if (round % 5 == 0) {  // many ties
    for (float& logit : logits) logit = std::round(logit);
  }
  std::vector<RowParams> rows(m);
  for (RowParams& row : rows) {
    const auto pick = [&generator](auto... values) {
      const double list[] = {static_cast<double>(values)...};
      return list[generator() % sizeof...(values)];
    };
    row.temperature = static_cast<float>(pick(0.0, 0.3, 0.7, 1.0, 1.9));
    row.top_k = static_cast<int32_t>(pick(-1, 0, 1, 3, 40, 100000));
    row.top_p = static_cast<float>(pick(0.05, 0.5, 0.9, 0.999, 1.0, 1.0));
    row.min_p = static_cast<float>(pick(0.0, 0.0, 0.02, 0.5, 1.0));
    row.seed = static_cast<int64_t>(generator());
    row.position = static_cast<int64_t>(generator() % 100);
  }
  SampleArgs args = make_args(machine, logits, rows);
  std::vector<int32_t> suppressed;
  for (int64_t i = 0; i < m * 3; ++i) {
    suppressed.push_back(i % 3 == 2 ? -1 : static_cast<int32_t>(generator() % vocab));
  }
  if (round % 2 == 0) args.suppressed = machine.tensor(suppressed, {m, 3});
  run(machine, args);
  const std::vector<double> expected = reference::sample(args);
  int num_compared = 0;
  for (int64_t row = 0; row < m; ++row) {
    // A border closer than f32 can resolve may fall either way.
    if (reference::kept_tokens(args, row).margin < 1e-5) continue;
    ++num_compared;
    EXPECT_EQ(args.token_ids.data<int32_t>()[row], expected[static_cast<size_t>(row)])
        << "round " << round << " row " << row;
  }
  return num_compared;
}

TEST(Sample, EveryFilterMatchesBruteForce) {
  std::mt19937 generator(9);
  int num_compared = 0;
  for (uint32_t round = 0; round < 60; ++round) {
    const int64_t vocab = std::vector<int64_t>{5, 97, 1000, 4096}[round % 4];
    num_compared += compare_with_brute_force(round, vocab, generator);
  }
  EXPECT_GE(num_compared, 800);
}

// Vocabularies that a GPU splits between thread blocks, of a length that vectors divide and of one
// that they do not.
TEST(Sample, EveryFilterMatchesBruteForceOverLargeVocabularies) {
  std::mt19937 generator(10);
  int num_compared = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    num_compared += compare_with_brute_force(round, round % 4 < 2 ? 20000 : 50021, generator);
  }
  EXPECT_GE(num_compared, 80);  // borders are closer where there are more tokens
}

TEST(Sample, OnlyKeptTokensAreEverDrawn) {
  Machine machine;
  const int64_t vocab = 50;
  std::vector<float> logits = random_logits(vocab, 4, 1.0f);
  const int64_t m = 2000;
  std::vector<float> repeated;
  std::vector<RowParams> rows;
  for (int64_t i = 0; i < m; ++i) {
    repeated.insert(repeated.end(), logits.begin(), logits.end());
    rows.push_back({.top_k = 20, .top_p = 0.6f, .seed = i});
  }
  const SampleArgs args = make_args(machine, repeated, rows);
  run(machine, args);
  const std::vector<int32_t> kept = reference::kept_tokens(args, 0).ids;
  std::map<int32_t, int> seen;
  for (int32_t id : values_of<int32_t>(args.token_ids)) ++seen[id];
  for (const auto& [id, count] : seen) {
    EXPECT_NE(std::find(kept.begin(), kept.end(), id), kept.end()) << id;
  }
  EXPECT_EQ(seen.size(), kept.size());  // every kept token is drawn at some time
}

// Draws many tokens over seeds, or over positions of one seed, and compares the counts with the
// softmax. The limit is the 1 - 1e-6 quantile of chi-square (Wilson and Hilferty's approximation).
void expect_softmax_distribution(bool vary_seed, float temperature) {
  Machine machine;
  const int64_t vocab = 24;
  const int64_t m = 20000;
  const std::vector<float> logits = random_logits(vocab, 8, 1.5f);
  std::vector<float> repeated;
  std::vector<RowParams> rows;
  for (int64_t i = 0; i < m; ++i) {
    repeated.insert(repeated.end(), logits.begin(), logits.end());
    rows.push_back(
        {.temperature = temperature, .seed = vary_seed ? i : 77, .position = vary_seed ? 3 : i});
  }
  const SampleArgs args = make_args(machine, repeated, rows);
  run(machine, args);
  const reference::KeptTokens kept = reference::kept_tokens(args, 0);
  std::map<int32_t, int> seen;
  for (int32_t id : values_of<int32_t>(args.token_ids)) ++seen[id];
  double chi_square = 0.0;
  for (size_t i = 0; i < kept.ids.size(); ++i) {
    const double expected = kept.probabilities[i] * static_cast<double>(m);
    const double difference = seen[kept.ids[i]] - expected;
    chi_square += difference * difference / expected;
  }
  const double degrees = static_cast<double>(vocab) - 1.0;
  const double cube = 1.0 - 2.0 / (9.0 * degrees) + 4.75 * std::sqrt(2.0 / (9.0 * degrees));
  EXPECT_LE(chi_square, degrees * cube * cube * cube);
  EXPECT_GE(chi_square, degrees * 0.2);  // counts that are too regular are wrong as well
}

TEST(Sample, DrawsFromTheSoftmaxOverSeeds) { expect_softmax_distribution(true, 1.0f); }
TEST(Sample, DrawsFromTheSoftmaxOverPositions) { expect_softmax_distribution(false, 1.0f); }
TEST(Sample, DrawsFromTheSoftmaxWithATemperature) { expect_softmax_distribution(true, 0.6f); }

TEST(Sample, ARowAloneDrawsWhatItDrawsInABatch) {
  Machine machine;
  const int64_t vocab = 5000;
  const std::vector<float> logits = random_logits(8 * vocab, 21);
  std::vector<RowParams> rows;
  for (int64_t i = 0; i < 8; ++i) rows.push_back({.top_p = 0.95f, .seed = i, .position = 5 * i});
  const SampleArgs batch = make_args(machine, logits, rows, 4);
  run(machine, batch);
  for (int64_t row = 0; row < 8; ++row) {
    Machine other(1);
    const SampleArgs alone = make_args(
        other, std::vector<float>(logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab),
        {rows[static_cast<size_t>(row)]}, 4);
    run(other, alone);
    EXPECT_TRUE(bytes_of(alone.token_ids) == bytes_of(batch.token_ids.rows(row, 1)));
    EXPECT_TRUE(bytes_of(alone.logprobs) == bytes_of(batch.logprobs.rows(row, 1)));
    EXPECT_TRUE(bytes_of(alone.top_token_ids) == bytes_of(batch.top_token_ids.rows(row, 1)));
    EXPECT_TRUE(bytes_of(alone.top_logprobs) == bytes_of(batch.top_logprobs.rows(row, 1)));
  }
}

TEST(Sample, LogProbabilitiesAreThoseOfTheRawLogits) {
  Machine machine;
  const int64_t vocab = 151936;
  std::vector<float> logits = random_logits(2 * vocab, 33, 5.0f);
  logits[70] = -kInfinity;
  const SampleArgs args =
      make_args(machine, logits, {{.temperature = 0.4f, .top_k = 7}, {.temperature = 0.0f}}, 20);
  run(machine, args);
  for (int64_t row = 0; row < 2; ++row) {
    const std::vector<double> expected = reference::log_softmax(args, row);
    const int32_t chosen = args.token_ids.data<int32_t>()[row];
    // A thousand f32 additions to a lane of a block, 16 lanes, f64 from there on; exp within 2 ulp.
    const double sum_error = (64.0 + 4.0 + 4.0) * kUnitF32;
    const auto bound = [&](double value) { return sum_error + 2.0 * kUnitF32 * std::abs(value); };
    EXPECT_NEAR(element(args.logprobs, row), expected[static_cast<size_t>(chosen)],
                bound(expected[static_cast<size_t>(chosen)]));
    std::vector<int32_t> order(static_cast<size_t>(vocab));
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return expected[static_cast<size_t>(a)] > expected[static_cast<size_t>(b)];
    });
    for (int64_t i = 0; i < 20; ++i) {
      const int32_t id = args.top_token_ids.data<int32_t>()[row * 20 + i];
      EXPECT_EQ(id, order[static_cast<size_t>(i)]);
      const double value = expected[static_cast<size_t>(id)];
      EXPECT_NEAR(element(args.top_logprobs, row * 20 + i), value, bound(value));
    }
  }
}

TEST(Sample, SuppressedTokensAreNeverChosenButKeepTheirProbability) {
  Machine machine;
  SampleArgs args = make_args(machine, {1.0f, 5.0f, 2.0f, 4.0f}, {{.temperature = 0.0f}}, 1);
  args.suppressed = machine.tensor(std::vector<int32_t>{1, -1}, {1, 2});
  run(machine, args);
  EXPECT_EQ(args.token_ids.data<int32_t>()[0], 3);
  EXPECT_EQ(args.top_token_ids.data<int32_t>()[0], 1);
  EXPECT_NEAR(element(args.logprobs, 0), reference::log_softmax(args, 0)[3], 1e-6);
}

void expect_row_error(const std::vector<float>& bad_row) {
  Machine machine;
  std::vector<float> logits = random_logits(static_cast<int64_t>(bad_row.size()), 1);
  logits.insert(logits.end(), bad_row.begin(), bad_row.end());
  const SampleArgs args = make_args(machine, logits, {{}, {}});
  sample(machine.stream(), args);
  try {
    machine.synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("row 1"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("sample"), std::string::npos) << error.what();
  }
}

TEST(Sample, ARowWithoutAFiniteLogitIsAnErrorThatNamesIt) {
  expect_row_error(std::vector<float>(40, -kInfinity));
  expect_row_error(std::vector<float>(40, std::nanf("")));
  std::vector<float> one_nan(40, 1.0f);
  one_nan[25] = std::nanf("");
  expect_row_error(one_nan);
  one_nan[25] = kInfinity;
  expect_row_error(one_nan);
}

TEST(Sample, SuppressingEverythingIsAnError) {
  Machine machine;
  SampleArgs args = make_args(machine, {1.0f, -kInfinity}, {{}});
  args.suppressed = machine.tensor(std::vector<int32_t>{0}, {1, 1});
  sample(machine.stream(), args);
  EXPECT_THROW(machine.synchronize(), Error);
}

// A large vocabulary is cut into pieces for all threads; ties across pieces go to the lowest id.
TEST(Sample, BitsDoNotDependOnThreadsAndTiesAcrossPiecesGoToTheLowestId) {
  constexpr int64_t kVocab = 50'000;
  std::vector<float> logits = random_logits(2 * kVocab, 5);
  for (const int64_t id : {9'000, 17'000, 49'999}) logits[id] = 30.0f;
  std::vector<float> expected;
  for (const int num_threads : {1, 2, 5}) {
    Machine machine(num_threads);
    const SampleArgs args = make_args(machine, logits, {{.temperature = 0.0f}, {.seed = 3}}, 4);
    run(machine, args);
    const auto* ids = args.token_ids.data<int32_t>();
    const auto* top = args.top_token_ids.data<int32_t>();
    EXPECT_EQ(ids[0], 9'000);
    EXPECT_EQ(std::vector<int32_t>(top, top + 3), (std::vector<int32_t>{9'000, 17'000, 49'999}));
    std::vector<float> got = {static_cast<float>(ids[1]), args.logprobs.data<float>()[0],
                              args.logprobs.data<float>()[1]};
    if (expected.empty()) expected = got;
    EXPECT_EQ(got, expected) << num_threads;
  }
}

}  // namespace
}  // namespace sluice::testing
