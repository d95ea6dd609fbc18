// One prefill for one prefix: requests that share the beginning of a prompt wait until the first of
// them has computed it, whatever happens to that one. Counts tokens; the engine's tests also
// compare bits.
#include <numeric>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "engine/scheduler_harness.h"
#include "engine/scoped_engine.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::Job;
using testing::random_tokens;
using testing::sampled;

constexpr int kNumQuestions = 8;
constexpr int64_t kDocumentTokens = 330;
constexpr int64_t kSharedTokens = 320;  // in whole blocks of 16, and in whole scopes of 64

// The document, and a question that differs in its first token.
std::vector<int32_t> prompt_of(int question) {
  std::vector<int32_t> tokens = random_tokens(kDocumentTokens, 1);
  std::vector<int32_t> tail =
      random_tokens(20 + 3 * question, 100 + static_cast<uint64_t>(question));
  tail[0] = 10 + question;
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  return tokens;
}

// Tokens of the prompt that it shares with no other.
int64_t own_tokens(int question) { return std::ssize(prompt_of(question)) - kSharedTokens; }

int64_t all_own_tokens() {
  int64_t sum = 0;
  for (int i = 0; i < kNumQuestions; ++i) sum += own_tokens(i);
  return sum;
}

class SharedPrefix : public ::testing::Test, public testing::SchedulerHarness {
 protected:
  void make(int32_t num_blocks, int32_t scope = 1) {
    SchedulerHarness::make({.num_blocks = num_blocks,
                            .cached_scope = scope,
                            .limits = {.max_num_seqs = 16,
                                       .max_num_batched_tokens = 256,  // so that others have room
                                       .prefill_chunk_tokens = 64,
                                       .span_align_tokens = std::lcm(scope, 16)}});
  }

  void ask(int question) { add(question, prompt_of(question)); }

  Batch step() {
    Batch batch = scheduler_->schedule();
    if (batch.kind == Phase::kPrefill) num_computed_ += batch.num_rows();
    complete(batch);
    return batch;
  }

  bool has_begun(int64_t id) { return sequence(id).kv.begun(); }
  bool has_token(int64_t id) { return sequence(id).num_generated() > 0; }

  // Steps until all questions in [first, end) have a token.
  void run_all(int first, int end) {
    for (int num_steps = 0; num_steps < 300; ++num_steps) {
      bool all = true;
      for (int id = first; id < end; ++id) all = all && has_token(id);
      if (all) return;
      step();
    }
    FAIL() << "some question was never computed";
  }

  int64_t num_computed_ = 0;
};

TEST_F(SharedPrefix, IsComputedOnce) {
  for (const int32_t scope : {1, 64}) {
    make(400, scope);
    num_computed_ = 0;
    for (int i = 0; i < kNumQuestions; ++i) ask(i);
    step();
    EXPECT_TRUE(has_begun(0)) << "the shortest";
    for (int i = 1; i < kNumQuestions; ++i) EXPECT_FALSE(has_begun(i)) << "a held one has memory";
    run_all(0, kNumQuestions);
    EXPECT_EQ(num_computed_, kSharedTokens + all_own_tokens()) << "scope " << scope;
  }
}

// Requests with different salts neither wait for each other nor find each other's blocks.
TEST_F(SharedPrefix, IsComputedOnceForEachSalt) {
  make(400);
  for (int i = 0; i < kNumQuestions; ++i) add(i, prompt_of(i), i % 2 == 0 ? "even" : "odd");
  step();
  EXPECT_TRUE(has_begun(0) && has_begun(1));
  for (int i = 2; i < kNumQuestions; ++i) EXPECT_FALSE(has_begun(i));
  run_all(0, kNumQuestions);
  EXPECT_EQ(num_computed_, 2 * kSharedTokens + all_own_tokens());
}

TEST_F(SharedPrefix, HeldRequestsAreOvertaken) {
  make(400);
  for (int i = 0; i < 3; ++i) ask(i);
  add(50, 40);
  step();
  EXPECT_TRUE(has_token(50)) << "it shares the first pass";
  add(51, 40);
  step();
  step();
  EXPECT_TRUE(has_token(51));
  EXPECT_TRUE(has_begun(0));
  EXPECT_FALSE(has_begun(1) || has_begun(2));
}

TEST_F(SharedPrefix, GoesOnWhereACancelledLeaderStopped) {
  make(400);
  for (int i = 0; i < kNumQuestions; ++i) ask(i);
  for (int i = 0; i < 3; ++i) step();
  ASSERT_EQ(sequence(0).kv.num_tokens(), 192);
  scheduler_->remove(SequenceId(0));
  run_all(1, kNumQuestions);
  EXPECT_EQ(num_computed_, kSharedTokens + all_own_tokens() - own_tokens(0));
}

// An older request needs a block to decode, and the leader has all the others.
TEST_F(SharedPrefix, GoesOnWhereAPreemptedLeaderStopped) {
  constexpr int kNum = 3;
  make(23);  // one for the older request, 22 for the leader
  add(0, 13);
  step();
  for (int i = 0; i < kNum; ++i) add(1 + i, prompt_of(i));
  int64_t num_done = 0;
  while (scheduler_->num_preemptions() == 0) {
    num_done = sequence(1).kv.num_tokens();
    ASSERT_LT(num_done, kSharedTokens) << "the leader was not preempted";
    step();
  }
  EXPECT_EQ(num_done, 192);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(step().kind, Phase::kDecode) << "no memory for the others";
  scheduler_->remove(SequenceId(0));
  int64_t num_own = 13;
  for (int i = 0; i < kNum; ++i) {
    run_all(1 + i, 2 + i);
    scheduler_->remove(SequenceId(1 + i));
    num_own += own_tokens(i);
  }
  EXPECT_EQ(num_computed_, kSharedTokens + num_own);
}

// Requests for few documents with random ends, in little memory, cancelled at random: all of them
// end, and hold consistent blocks at every step.
TEST_F(SharedPrefix, NothingWaitsForever) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
    };
    make(40, seed % 3 == 0 ? 32 : 1);
    std::set<int64_t> alive;
    int64_t next_id = 0;
    for (int num_steps = 0; next_id < 150 || !alive.empty(); ++num_steps) {
      ASSERT_LT(num_steps, 20'000) << "seed " << seed;
      while (next_id < 150 && alive.size() < 20 && draw(3) > 0) {
        std::vector<int32_t> tokens = random_tokens(500, static_cast<uint64_t>(draw(3)));
        tokens.resize(static_cast<size_t>(1 + draw(400)));
        for (const int32_t token : random_tokens(draw(60), 7 + static_cast<uint64_t>(next_id))) {
          tokens.push_back(token);
        }
        alive.insert(next_id);
        add(next_id++, std::move(tokens));
      }
      if (!alive.empty() && draw(6) == 0) {
        const int64_t id = *std::next(alive.begin(), draw(std::ssize(alive)));
        scheduler_->remove(SequenceId(id));
        alive.erase(id);
      }
      if (alive.empty()) continue;
      const Batch batch = step();
      std::vector<int64_t> ended;
      for (const ScheduledSequence& s : batch.sequences) {
        if (s.sequence->num_generated() > 10) ended.push_back(s.sequence->id.value);
      }
      for (const int64_t id : ended) {
        scheduler_->remove(SequenceId(id));
        alive.erase(id);
      }
      std::vector<const SequenceKv*> begun;
      for (const int64_t id : alive) {
        if (has_begun(id)) begun.push_back(&sequence(id).kv);
      }
      kv_->blocks().check_invariants(begun);
    }
    EXPECT_EQ(kv_->blocks().num_used_blocks(), 0) << "seed " << seed;
  }
}

// ---- With a model -----------------------------------------------------------------------------

std::vector<Job> prefix_jobs() {
  std::vector<Job> jobs;
  for (int i = 0; i < kNumQuestions; ++i) jobs.push_back({prompt_of(i), sampled(5, i)});
  return jobs;
}

TEST(SharedPrefixInTheEngine, IsComputedOnceWithTheBitsOfEachAlone) {
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked}) {
    EngineOptions options =
        mode == KvOffload::kOff ? testing::scoped_resident() : testing::scoped_offloaded(mode, 16);
    options = testing::in_chunks(options, 64, 256);
    std::vector<RequestOutput> alone;
    for (const Job& job : prefix_jobs()) alone.push_back(testing::run_engine(options, {job})[0]);
    LlmEngine engine(options, {.device = make_device("cpu", {.num_threads = 2})});
    const std::vector<RequestOutput> together = testing::run_jobs(engine, prefix_jobs());
    testing::expect_all_same(together, alone, kv_offload_name(mode));
    EXPECT_EQ(engine.stats().num_prompt_tokens, kSharedTokens + all_own_tokens());
    for (int i = 0; i < kNumQuestions; ++i) {
      EXPECT_EQ(together[static_cast<size_t>(i)].num_cached_tokens, i == 0 ? 0 : kSharedTokens);
    }
  }
}

// A salt changes what is found, and no token of the answer.
TEST(SharedPrefixInTheEngine, IsFoundByRequestsWithTheSameSaltOnly) {
  const EngineOptions options = testing::in_chunks(testing::scoped_resident(), 64, 256);
  LlmEngine engine(options, {.device = make_device("cpu", {.num_threads = 2})});
  struct Case {
    const char* salt;
    bool is_hit;
  };
  std::vector<RequestOutput> outputs;
  for (const Case& one :
       {Case{"", false}, Case{"a", false}, Case{"b", false}, Case{"a", true}, Case{"", true}}) {
    Job job{prompt_of(1), sampled(5, 1)};
    job.params.cache_salt = one.salt;
    outputs.push_back(testing::run_jobs(engine, {job})[0]);
    EXPECT_EQ(outputs.back().num_cached_tokens > 0, one.is_hit) << "salt " << one.salt;
    EXPECT_EQ(outputs.back().token_ids, outputs.front().token_ids) << "salt " << one.salt;
  }
}

}  // namespace
}  // namespace sluice
