// Adjusted logits, restricted rows and given tokens: against brute force, against the same call
// with the change made by hand, and without effect on other rows.
#include <cmath>

#include "ops/reference/sample.h"
#include "ops/sample/sample_rig.h"

namespace sluice::testing {
namespace {

// The changes of one row. An empty `allowed` allows all tokens.
struct RowChanges {
  struct Entry {
    int32_t id = 0;
    float bias = 0.0f;
    float repetition = 1.0f;
    float penalty = 0.0f;
  };
  std::vector<Entry> entries;
  std::vector<int32_t> allowed;
  int32_t given = -1;
};

// Adds the changes to the arguments. Unused entries follow, as in arrays that are planned for more.
void set_changes(Machine& machine, const std::vector<RowChanges>& rows, SampleArgs& args) {
  const auto m = static_cast<int64_t>(rows.size());
  const int64_t num_words = (args.logits.dim(1) + 31) / 32;
  std::vector<int32_t> begin, ids, masks, given;
  std::vector<float> bias, repetition, penalty;
  for (const RowChanges& row : rows) {
    begin.push_back(static_cast<int32_t>(ids.size()));
    for (const RowChanges::Entry& entry : row.entries) {
      ids.push_back(entry.id);
      bias.push_back(entry.bias);
      repetition.push_back(entry.repetition);
      penalty.push_back(entry.penalty);
    }
    SampleRow& params = args.rows.data<SampleRow>()[given.size()];
    given.push_back(row.given);
    if (row.allowed.empty()) continue;
    params.mask = static_cast<int32_t>(std::ssize(masks) / num_words);
    masks.resize(masks.size() + static_cast<size_t>(num_words), 0);
    int32_t* words = masks.data() + params.mask * num_words;
    for (const int32_t id : row.allowed) {
      words[id / 32] |= static_cast<int32_t>(uint32_t{1} << (id % 32));
    }
  }
  begin.push_back(static_cast<int32_t>(ids.size()));
  for (int unused = 0; unused < 3; ++unused) {
    ids.push_back(-7);
    for (std::vector<float>* values : {&bias, &repetition, &penalty}) {
      values->push_back(std::nanf(""));
    }
  }
  const auto n = static_cast<int64_t>(ids.size());
  args.given = machine.tensor(given, {m});
  args.adjustments = {.begin = machine.tensor(begin, {m + 1}),
                      .ids = machine.tensor(ids, {n}),
                      .bias = machine.tensor(bias, {n}),
                      .repetition = machine.tensor(repetition, {n}),
                      .penalty = machine.tensor(penalty, {n}),
                      .scratch = machine.tensor(DType::kF32, {n})};
  if (masks.empty()) return;
  args.masks = machine.tensor(masks, {std::ssize(masks) / num_words, num_words});
}

// Distinct ids in an order of their own, as tokens come in a text.
std::vector<int32_t> random_ids(int64_t count, int64_t vocab, std::mt19937& generator) {
  std::vector<int32_t> ids(static_cast<size_t>(vocab));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::shuffle(ids.begin(), ids.end(), generator);
  ids.resize(static_cast<size_t>(std::min(count, vocab)));
  return ids;
}

RowChanges random_changes(int64_t vocab, std::mt19937& generator) {
  const auto pick = [&generator](auto... values) {
    const double list[] = {static_cast<double>(values)...};
    return list[generator() % sizeof...(values)];
  };
  RowChanges row;
  if (generator() % 4 == 0) return row;  // an unchanged row beside the others
  const auto num_entries = static_cast<int64_t>(pick(0, 1, 3, 40, 3000));
  for (const int32_t id : random_ids(num_entries, vocab, generator)) {
    row.entries.push_back({.id = id,
                           .bias = static_cast<float>(pick(0, 0, 1.5, -4, 100, -kInfinity)),
                           .repetition = static_cast<float>(pick(1, 1.05, 1.3, 0.7)),
                           .penalty = static_cast<float>(pick(0, 0.3, 2, -1.7))});
  }
  // More than the ids that a -inf may ban, so that some token is left.
  if (generator() % 3 == 0) row.allowed = random_ids(vocab - vocab / 8, vocab, generator);
  if (generator() % 8 == 0) row.given = static_cast<int32_t>(generator() % vocab);
  return row;
}

SampleArgs random_args(Machine& machine, uint32_t round, int64_t vocab, std::mt19937& generator) {
  const int64_t m = 8;
  std::vector<RowParams> params(m);
  for (size_t i = 0; i < params.size(); ++i) {
    params[i] = {.temperature = i % 3 == 0 ? 0.0f : 0.8f,
                 .top_k = i % 4 == 1 ? 40 : 0,
                 .top_p = i % 2 == 0 ? 0.9f : 1.0f,
                 .min_p = i % 5 == 2 ? 0.02f : 0.0f,
                 .seed = static_cast<int64_t>(generator()),
                 .position = static_cast<int64_t>(i)};
  }
  const std::vector<float> logits = random_logits(m * vocab, round, round % 3 == 0 ? 0.5f : 4.0f);
  SampleArgs args = make_args(machine, logits, params, std::min<int64_t>(vocab, 20));
  std::vector<RowChanges> changes;
  for (int64_t row = 0; row < m; ++row) changes.push_back(random_changes(vocab, generator));
  set_changes(machine, changes, args);
  return args;
}

// Vocabularies of one thread block of a GPU and of several, with and without a whole last vector.
TEST(SampleChanges, MatchBruteForceAndLeaveTheLogitsAsTheyWere) {
  std::mt19937 generator(31);
  int num_compared = 0;
  for (uint32_t round = 0; round < 24; ++round) {
    Machine machine;
    const int64_t vocab = std::vector<int64_t>{33, 1000, 4095, 20000, 50021}[round % 5];
    const SampleArgs args = random_args(machine, round, vocab, generator);
    const std::vector<double> expected = reference::sample(args);
    const std::vector<std::byte> logits = bytes_of(args.logits);
    run(machine, args);
    EXPECT_TRUE(bytes_of(args.logits) == logits) << "round " << round;
    for (int64_t row = 0; row < args.logits.dim(0); ++row) {
      const int32_t id = args.token_ids.data<int32_t>()[row];
      const std::vector<double> logprobs = reference::log_softmax(args, row);
      EXPECT_NEAR(element(args.logprobs, row), logprobs[static_cast<size_t>(id)], 1e-4);
      if (reference::kept_tokens(args, row).margin < 1e-5) continue;
      ++num_compared;
      EXPECT_EQ(id, expected[static_cast<size_t>(row)]) << "round " << round << " row " << row;
    }
  }
  EXPECT_GE(num_compared, 150);
}

// The whole order of the adjusted logits: the greedy choice, again and again without those before.
TEST(SampleChanges, AdjustAsTheEquationSays) {
  Machine machine;
  const std::vector<float> logits = {3.0f, -3.0f, 2.0f, -1.0f, 0.0f, 5.0f, -4.0f};
  SampleArgs args = make_args(machine, logits, {{.temperature = 0.0f}});
  set_changes(machine,
              {{.entries = {{.id = 0, .repetition = 2.0f},                   // 3 / 2 = 1.5
                            {.id = 1, .repetition = 2.0f},                   // -3 * 2 = -6
                            {.id = 2, .bias = -4.0f, .repetition = 3.0f},    // (2 - 4) * 3 = -6+
                            {.id = 3, .bias = 3.0f, .penalty = 0.25f},       // -1 + 3 - 0.25 = 1.75
                            {.id = 5, .bias = -kInfinity, .penalty = -50},   // never
                            {.id = 6, .bias = 8.0f, .repetition = 0.5f}}}},  // (-4 + 8) / 0.5 = 8
              args);
  std::vector<int32_t> suppressed(6, -1);
  std::vector<int32_t> order;
  for (size_t i = 0; i < 6; ++i) {
    args.suppressed = machine.tensor(suppressed, {1, 6});
    run(machine, args);
    order.push_back(suppressed[i] = args.token_ids.data<int32_t>()[0]);
  }
  // 1 and 2 are equal: the lower id comes first.
  EXPECT_EQ(order, (std::vector<int32_t>{6, 3, 0, 4, 1, 2}));
}

// Huge results are cut, so that two of them stay comparable.
TEST(SampleChanges, OverflowIsCutAndNotAnError) {
  Machine machine;
  SampleArgs args = make_args(machine, {4.0f, 2.0f, 1.0f}, {{.seed = 3}});
  set_changes(machine,
              {{.entries = {{.id = 1, .repetition = 1e-45f}, {.id = 2, .repetition = 1e-45f}}}},
              args);
  run(machine, args);
  EXPECT_NE(args.token_ids.data<int32_t>()[0], 0);
  EXPECT_NEAR(
      element(args.logprobs, 0),
      reference::log_softmax(args, 0)[static_cast<size_t>(args.token_ids.data<int32_t>()[0])],
      1e-5);
}

// Rows that nothing changes have the bits of a call without the arguments.
TEST(SampleChanges, UnchangedRowsKeepTheirBitsBesideChangedOnes) {
  for (const int64_t vocab : {4095, 50021, 151936}) {
    Machine machine;
    const std::vector<RowParams> params = {
        {.seed = 1}, {.top_k = 30, .seed = 2}, {.temperature = 0.0f}, {.top_p = 0.8f, .seed = 3}};
    std::vector<float> logits = random_logits(vocab, 5);
    for (int row = 1; row < 8; ++row) {
      logits.insert(logits.end(), logits.begin(), logits.begin() + vocab);
    }
    std::vector<RowParams> all = params;
    all.insert(all.end(), params.begin(), params.end());
    const SampleArgs plain = make_args(machine, logits, all, 5);
    SampleArgs mixed = make_args(machine, logits, all, 5);
    const RowChanges changed = {.entries = {{.id = 7, .bias = 9.0f}, {.id = 40, .penalty = 3.0f}},
                                .allowed = {1, 2, 7, 40, 900}};
    set_changes(machine, {{}, {}, {}, {}, changed, changed, changed, {.given = 77}}, mixed);
    run(machine, plain);
    run(machine, mixed);
    EXPECT_TRUE(bytes_of(mixed.token_ids.rows(0, 4)) == bytes_of(plain.token_ids.rows(0, 4)));
    // Log-probabilities of the likeliest tokens are the same in all rows, changed or not.
    EXPECT_TRUE(bytes_of(mixed.logprobs.rows(0, 4)) == bytes_of(plain.logprobs.rows(0, 4)));
    EXPECT_TRUE(bytes_of(mixed.top_token_ids) == bytes_of(plain.top_token_ids));
    EXPECT_TRUE(bytes_of(mixed.top_logprobs) == bytes_of(plain.top_logprobs));
    EXPECT_EQ(mixed.token_ids.data<int32_t>()[7], 77);
  }
}

// A bias of -inf on all tokens but one, a restriction to this one, and the token itself as given.
TEST(SampleChanges, ThreeWaysToOneTokenGiveTheSameBits) {
  Machine machine;
  const int64_t vocab = 5000;
  const int32_t only = 4321;
  const std::vector<float> row = random_logits(vocab, 6);
  std::vector<float> logits;
  for (int i = 0; i < 3; ++i) logits.insert(logits.end(), row.begin(), row.end());
  SampleArgs args = make_args(machine, logits, {{.seed = 5}, {.seed = 6}, {.seed = 7}}, 3);
  RowChanges biased;
  for (int32_t id = 0; id < vocab; ++id) {
    if (id != only) biased.entries.push_back({.id = id, .bias = -kInfinity});
  }
  set_changes(machine, {biased, {.allowed = {only}}, {.given = only}}, args);
  run(machine, args);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(args.token_ids.data<int32_t>()[i], only) << i;
    EXPECT_TRUE(bytes_of(args.logprobs.rows(i, 1)) == bytes_of(args.logprobs.rows(0, 1))) << i;
  }
}

// Masks without any other change: a masked token is never chosen, and the rest is drawn as if its
// logit were -inf. Log-probabilities are those of all tokens. A row without a mask is not changed.
TEST(SampleChanges, MasksAloneDrawLikeLogitsOfMinusInfinity) {
  const std::vector<RowParams> params = {
      {.seed = 1}, {.top_k = 30, .seed = 2}, {.temperature = 0.0f}, {.top_p = 0.8f, .seed = 3}};
  for (const int64_t vocab : {33, 4095, 50021}) {
    Machine machine;
    std::mt19937 generator(15);
    std::vector<float> logits = random_logits(4 * vocab, 16, 1.0f);
    SampleArgs masked = make_args(machine, logits, params, 5);
    const SampleArgs plain = make_args(machine, logits, params, 5);
    std::vector<RowChanges> changes(4);
    for (const size_t row : {0, 2, 3}) changes[row].allowed = random_ids(9, vocab, generator);
    set_changes(machine, changes, masked);
    masked.adjustments = {};
    masked.given = {};
    for (const size_t row : {0, 2, 3}) {
      const std::vector<int32_t>& allowed = changes[row].allowed;
      for (int32_t id = 0; id < vocab; ++id) {
        if (std::find(allowed.begin(), allowed.end(), id) != allowed.end()) continue;
        logits[row * static_cast<size_t>(vocab) + static_cast<size_t>(id)] = -kInfinity;
      }
    }
    const SampleArgs by_hand = make_args(machine, logits, params, 5);
    run(machine, masked);
    run(machine, plain);
    run(machine, by_hand);
    EXPECT_EQ(values_of<int32_t>(masked.token_ids), values_of<int32_t>(by_hand.token_ids));
    EXPECT_TRUE(bytes_of(masked.top_token_ids) == bytes_of(plain.top_token_ids));
    EXPECT_TRUE(bytes_of(masked.top_logprobs) == bytes_of(plain.top_logprobs));
    for (int64_t row = 0; row < 4; ++row) {
      const auto id = static_cast<size_t>(masked.token_ids.data<int32_t>()[row]);
      EXPECT_NEAR(element(masked.logprobs, row), reference::log_softmax(masked, row)[id], 1e-4);
    }
    EXPECT_TRUE(bytes_of(masked.logprobs.rows(1, 1)) == bytes_of(plain.logprobs.rows(1, 1)));
  }
}

// Adjustments equal logits that were changed by hand; only log-probabilities differ.
TEST(SampleChanges, DrawLikeLogitsChangedByHand) {
  const int64_t vocab = 20000;
  std::mt19937 generator(12);
  std::vector<float> logits = random_logits(4 * vocab, 14, 1.0f);
  const std::vector<RowParams> params = {
      {.seed = 1}, {.top_k = 30, .seed = 2}, {.temperature = 0.0f}, {.top_p = 0.8f, .seed = 3}};
  Machine machine;
  SampleArgs adjusted = make_args(machine, logits, params);
  std::vector<RowChanges> changes(4);
  for (size_t row = 0; row < 4; ++row) {
    for (const int32_t id : random_ids(2000, vocab, generator)) {
      changes[row].entries.push_back({.id = id, .repetition = 4.0f, .penalty = 0.5f});
      float& logit = logits[row * static_cast<size_t>(vocab) + static_cast<size_t>(id)];
      logit = (logit > 0 ? logit * 0.25f : logit * 4.0f) - 0.5f;
    }
  }
  set_changes(machine, changes, adjusted);
  const SampleArgs by_hand = make_args(machine, logits, params);
  run(machine, adjusted);
  run(machine, by_hand);
  EXPECT_EQ(values_of<int32_t>(adjusted.token_ids), values_of<int32_t>(by_hand.token_ids));
}

void expect_nothing_left(const RowChanges& row) {
  Machine machine;
  SampleArgs args = make_args(machine, {1.0f, 2.0f, -kInfinity}, {{}});
  set_changes(machine, {row}, args);
  sample(machine.stream(), args);
  try {
    machine.synchronize();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("row 0 has no token left"), std::string::npos)
        << error.what();
  }
}

TEST(SampleChanges, ARowWithoutATokenIsAnErrorThatNamesIt) {
  expect_nothing_left({.allowed = {2}});
  expect_nothing_left({.entries = {{.id = 0, .bias = -kInfinity}, {.id = 1, .bias = -kInfinity}}});
  expect_nothing_left({.entries = {{.id = 1, .bias = -kInfinity}}, .allowed = {1, 2}});
}

TEST(SampleChanges, AGivenTokenOfBrokenLogitsIsAnError) {
  Machine machine;
  SampleArgs args = make_args(machine, {1.0f, std::nanf(""), 0.0f}, {{}});
  set_changes(machine, {{.given = 2}}, args);
  sample(machine.stream(), args);
  EXPECT_THROW(machine.synchronize(), Error);
}

}  // namespace
}  // namespace sluice::testing
