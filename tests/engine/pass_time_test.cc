// Passes that are sized by time: the bounds of PrefillRates, and the scheduler against a clock that
// follows a model of a device.
#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "engine/schedule/prefill_rates.h"
#include "engine/schedule/scheduler.h"
#include "engine/scheduler_harness.h"

namespace sluice {
namespace {

// What a device takes for rows of a prompt: products for each row, attention by its position.
struct FakeDevice {
  double row_ns = 100;       // of a row's matrix products
  double context_ns = 0.01;  // of a row's attention, for each token before it

  int64_t ns(int64_t first_pos, int64_t num_rows) const {
    const double rows = static_cast<double>(num_rows);
    const double position = static_cast<double>(first_pos) + rows / 2;
    return static_cast<int64_t>(rows * (row_ns + context_ns * position));
  }
};

TEST(PrefillRatesTest, KnowsNothingBeforeTheFirstPass) {
  const PrefillRates rates;
  EXPECT_FALSE(rates.ns_per_row(1000));
  EXPECT_EQ(rates.rows_within(0, 1'000'000, 4096), 0);
}

// Between and beyond what was measured the cost is never taken for less than it is. (Two passes at
// almost the same position share a point, so a small share remains.)
TEST(PrefillRatesTest, BoundsTheCostOfEveryPosition) {
  const FakeDevice device;
  PrefillRates rates;
  for (const int64_t position : {700, 30'000, 31'000, 500'000}) {
    rates.measured(position, 64, device.ns(position - 32, 64));
    for (int64_t at = 1; at < 4'000'000; at += at / 10 + 1) {
      const double cost = device.row_ns + device.context_ns * static_cast<double>(at);
      ASSERT_GE(*rates.ns_per_row(at), cost * 0.99) << at << " after " << position;
      const int64_t rows = rates.rows_within(at, 1'000'000, 1 << 20);
      ASSERT_LE(device.ns(at, rows), 1'050'000) << at << " after " << position;
    }
  }
  // Near what was measured the bound is close.
  EXPECT_LT(*rates.ns_per_row(30'500), 1.1 * (device.row_ns + device.context_ns * 30'500));
}

TEST(PrefillRatesTest, FollowsChangesAndIgnoresShortPasses) {
  PrefillRates rates;
  for (int i = 0; i < 5; ++i) rates.measured(10'000, 2048, 2048 * 100);
  rates.measured(10'000, 5, 5 * 10'000);
  EXPECT_NEAR(*rates.ns_per_row(10'000), 100, 15) << "5 rows count as 5 rows";
  for (int i = 0; i < 5; ++i) rates.measured(10'000, 2048, 2048 * 300);
  EXPECT_NEAR(*rates.ns_per_row(10'000), 300, 10);
  rates.measured(20, 1, 0);
  EXPECT_GT(*rates.ns_per_row(20), 0) << "a clock that stands still";
}

class PassTime : public ::testing::Test, public testing::SchedulerHarness {
 protected:
  static constexpr int64_t kStallNs = 200'000'000;
  static constexpr int64_t kMinSpan = 256;

  PassTime() {
    make({.num_blocks = 4000,
          .block_tokens = 128,
          .limits = {.max_num_seqs = 16,
                     .max_num_batched_tokens = 16384,
                     .prefill_chunk_tokens = 16384,
                     .span_align_tokens = 128,
                     .row_block_tokens = 128,
                     .max_stall_ns = kStallNs,
                     .min_span_tokens = kMinSpan}});
  }

  // Runs the next step by the device's model. Returns its time.
  int64_t run(Batch& batch) {
    batch = scheduler_->schedule();
    int64_t duration_ns = 0;
    for (const ScheduledSequence& s : batch.sequences) {
      duration_ns += device_.ns(s.sequence->kv.num_tokens(), s.num_rows);
    }
    if (batch.kind == Phase::kDecode) duration_ns = kDecodeNs;
    scheduler_->measured(batch, duration_ns);
    complete(batch);
    return duration_ns;
  }

  static constexpr int64_t kDecodeNs = 5'000'000;
  // A span of 0.2 s has 8000 rows at the beginning of a prompt and 1200 at position 350K.
  FakeDevice device_{.row_ns = 20'000, .context_ns = 0.4};
};

TEST_F(PassTime, SpansOfALongPromptTakeTheTimeThatIsAllowed) {
  add(0, 400'000);
  int64_t num_passes = 0, total_ns = 0;
  while (sequence(0).num_generated() == 0) {
    Batch batch;
    const int64_t duration_ns = run(batch);
    ASSERT_EQ(batch.kind, Phase::kPrefill);
    EXPECT_LE(duration_ns, kStallNs * 102 / 100) << "pass " << num_passes;
    if (num_passes == 0) {
      EXPECT_EQ(batch.num_rows(), kMinSpan) << "nothing is measured yet";
    }
    total_ns += duration_ns;
    ++num_passes;
  }
  EXPECT_LE(num_passes, total_ns / kStallNs * 115 / 100) << "spans are much shorter than allowed";
}

// Where even the shortest span takes longer, it is the one that runs.
TEST_F(PassTime, NoSpanIsShorterThanTheLeast) {
  device_.row_ns = 2'000'000;
  add(0, 5'100);
  while (sequence(0).num_generated() == 0) {
    Batch batch;
    run(batch);
    EXPECT_EQ(batch.num_rows(), sequence(0).num_generated() > 0 ? 5'100 % kMinSpan : kMinSpan);
  }
}

// A running sequence decodes for one and a half times what the passes between take, and a short
// prompt is not held up by more than the pass that runs and the one that it shares.
TEST_F(PassTime, DecodingHasMoreThanHalfOfTheTime) {
  add(0, 100);
  Batch batch;
  run(batch);
  add(1, 300'000);
  int64_t prefill_ns = 0, decode_ns = 0;
  for (int step = 0; step < 2000; ++step) {
    const int64_t duration_ns = run(batch);
    (batch.kind == Phase::kPrefill ? prefill_ns : decode_ns) += duration_ns;
    ASSERT_EQ(sequence(1).num_generated(), 0) << "the prompt is too short for this test";
  }
  EXPECT_NEAR(static_cast<double>(decode_ns) / static_cast<double>(prefill_ns), 1.5, 0.05);
  while (batch.kind == Phase::kDecode) run(batch);
  // One decode step after this pass, then the newcomer at once, although decoding has time left.
  add(2, 100);
  run(batch);
  EXPECT_EQ(batch.kind, Phase::kDecode);
  run(batch);
  EXPECT_EQ(batch.kind, Phase::kPrefill);
  EXPECT_EQ(ids_of(batch).front(), 2);
  EXPECT_EQ(sequence(2).num_generated(), 1);
}

// Each newcomer interrupts the time for decoding; its pass, in which the long prompt gets rows,
// too, must not end it.
TEST_F(PassTime, NewcomersTakeNoTimeFromDecoding) {
  add(0, 100);
  Batch batch;
  run(batch);
  add(1, 300'000);
  int64_t prefill_ns = 0, decode_ns = 0, newest = 1;
  for (int step = 0; step < 3000; ++step) {
    if (step % 80 == 0) add(++newest, 100);  // a pass has 60 decode steps
    const int64_t duration_ns = run(batch);
    (batch.kind == Phase::kPrefill ? prefill_ns : decode_ns) += duration_ns;
    ASSERT_EQ(sequence(1).num_generated(), 0) << "the prompt is too short for this test";
    const auto newcomer = sequences_.find(newest);
    if (newest > 1 && newcomer != sequences_.end() && newcomer->second->num_generated() > 0) {
      scheduler_->remove(SequenceId(newest));
      sequences_.erase(newest);
    }
  }
  EXPECT_GE(static_cast<double>(decode_ns) / static_cast<double>(prefill_ns), 1.4);
}

// Time that no request could use is not kept for one that comes later: it would stop the long
// prompt.
TEST_F(PassTime, TimeWithoutDecodingIsNotKept) {
  add(0, 300'000);
  Batch batch;
  for (int pass = 0; pass < 10; ++pass) run(batch);
  add(1, 100);
  const int64_t pass_ns = run(batch);
  ASSERT_EQ(ids_of(batch).front(), 1);
  int64_t decode_ns = 0;
  for (int64_t duration_ns = run(batch); batch.kind == Phase::kDecode; duration_ns = run(batch)) {
    decode_ns += duration_ns;
  }
  EXPECT_NEAR(static_cast<double>(decode_ns), 1.5 * static_cast<double>(pass_ns), kDecodeNs);
}

// Prompts of many clients: passes stay short, all of them end, and none waits behind a longer one.
TEST_F(PassTime, ManyPromptsShareThePasses) {
  for (int64_t id = 0; id < 12; ++id) add(id, id == 0 ? 100'000 : 200 + 700 * id);
  std::set<int64_t> done;
  int64_t longest_ns = 0;
  for (int step = 0; step < 5000 && done.size() < 12; ++step) {
    Batch batch;
    longest_ns = std::max(longest_ns, run(batch));
    for (const ScheduledSequence& s : batch.sequences) {
      if (batch.kind == Phase::kPrefill && s.wants_token) done.insert(s.sequence->id.value);
    }
    if (done.contains(0)) {
      EXPECT_EQ(done.size(), 12u) << "the long prompt ends last";
    }
  }
  EXPECT_EQ(done.size(), 12u);
  EXPECT_LE(longest_ns, kStallNs * 105 / 100);
}

}  // namespace
}  // namespace sluice
