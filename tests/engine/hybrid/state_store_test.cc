// The KV store of hybrids: states lie beside the blocks after which they were kept. A request reads
// KV as far as states are stored, and has the bits of one that is computed; whatever is damaged,
// missing or unreadable is computed.
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "engine/store/store_engine.h"
#include "io/expect_error.h"
#include "sluice/inspect.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

using testing::before_answer;
using testing::branch;
using testing::Compared;
using testing::Job;
using testing::joined;
using testing::kHybrid;
using testing::make_store_engine;
using testing::random_tokens;
using testing::run_jobs;
using testing::run_with_store;
using testing::sampled;
using testing::snapshot_bytes;
using testing::TemporaryStore;
using testing::Tokens;
using testing::whole;
using testing::with_store;

EngineOptions hybrid_options(KvOffload mode) {
  EngineOptions options = testing::tiny_options(kHybrid);
  if (mode != KvOffload::kOff) options = testing::with_offload(options, mode);
  options.kv_store.min_tokens = 0;
  return options;
}

constexpr KvOffload kModes[] = {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise};

void flip_bit(const std::filesystem::path& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 4));
}

class StateStore : public ::testing::TestWithParam<KvOffload> {
 protected:
  std::vector<StoredFile> states() const { return list_store(store_.path()).states; }

  // Runs the job in an engine of its own, and compares.
  RequestOutput run(const Job& job, const std::string& what, StoreFiles* files = nullptr) {
    const std::unique_ptr<LlmEngine> engine = make_store_engine(options_, files);
    const std::vector<RequestOutput> outputs = run_jobs(*engine, {job});
    compared_.expect_same({job}, outputs, what);
    stats_ = engine->stats();
    return outputs[0];
  }

  const TemporaryStore store_;
  EngineOptions options_ = with_store(hybrid_options(GetParam()), store_);
  Compared compared_{hybrid_options(GetParam())};
  EngineStats stats_;  // of the last run
  const Job job_{random_tokens(250, 1), sampled(40, 1)};
};

INSTANTIATE_TEST_SUITE_P(Modes, StateStore, ::testing::ValuesIn(kModes),
                         [](const auto& one) { return kv_offload_name(one.param); });

TEST_P(StateStore, ARestartGoesOnWhereStatesAre) {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 16, 31, 33, 48, 64, 100, 250}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  compared_.expect_same(jobs, run_with_store(options_, jobs), "first");
  for (int restart = 0; restart < 2; ++restart) {
    const std::vector<RequestOutput> warm = run_with_store(options_, jobs);
    compared_.expect_same(jobs, warm, "restarted");
    for (size_t i = 0; i < jobs.size(); ++i) {
      const int64_t expected = std::max<int64_t>(before_answer(std::ssize(jobs[i].prompt)), 0);
      EXPECT_EQ(warm[i].num_stored_tokens, expected) << i;
      EXPECT_EQ(warm[i].num_cached_tokens, expected) << i;
      EXPECT_EQ(warm[i].num_prompt_tokens_done, std::ssize(jobs[i].prompt)) << i;
    }
  }
}

TEST_P(StateStore, ASecondTurnAfterARestart) {
  const RequestOutput first = run(job_, "first");
  const Tokens second = joined(joined(job_.prompt, first.token_ids), random_tokens(50, 2));
  EXPECT_EQ(run({second, sampled(20, 3)}, "second").num_stored_tokens, whole(289));
  EXPECT_EQ(stats_.num_stored_tokens, whole(289));
  EXPECT_GT(stats_.store_read_bytes, snapshot_bytes());
  Tokens edited = second;
  edited[2] = edited[2] == 7 ? 8 : 7;
  EXPECT_EQ(run({edited, sampled(20, 3)}, "edited").num_stored_tokens, 0);
}

// What one mode has written, another one reads.
TEST_P(StateStore, IsSharedByAllModes) {
  run(job_, "first");
  for (const KvOffload mode : kModes) {
    options_ = with_store(hybrid_options(mode), store_);
    EXPECT_EQ(run(job_, kv_offload_name(mode)).num_stored_tokens, before_answer(250));
  }
}

TEST_P(StateStore, KvWithoutStatesIsNotRead) {
  run(job_, "first");
  const std::vector<StoredFile> files = states();
  ASSERT_GE(files.size(), 3u) << "two before the answer, one of it";
  for (const StoredFile& file : files) std::filesystem::remove(file.path.whole());
  EXPECT_EQ(run(job_, "without").num_stored_tokens, 0);
  EXPECT_EQ(stats_.store_read_bytes, 0);
  EXPECT_EQ(run(job_, "written again").num_stored_tokens, before_answer(250));
}

TEST_P(StateStore, DamagedStatesAreComputed) {
  run(job_, "first");
  const std::vector<StoredFile> files = states();
  for (size_t i = 0; i < files.size(); ++i) {
    const uint64_t offsets[] = {4, 100, 4000, 4096 + 7, 8192 + 100, files[i].num_bytes - 1};
    for (const uint64_t offset : offsets) {
      flip_bit(files[i].path.whole(), offset);
      const RequestOutput output = run(job_, "damaged");
      EXPECT_LE(output.num_stored_tokens, before_answer(250));
      EXPECT_EQ(output.num_stored_tokens, stats_.num_stored_tokens);
      EXPECT_EQ(output.num_cached_tokens, output.num_stored_tokens);
      EXPECT_EQ(run(job_, "written again").num_stored_tokens, before_answer(250)) << i;
    }
  }
}

// All of them, so that every attempt to go on fails.
TEST_P(StateStore, OnlyDamagedStatesAreNoEndlessTask) {
  run(job_, "first");
  for (const KvStoreMode mode : {KvStoreMode::kReadOnly, KvStoreMode::kReadWrite}) {
    for (const StoredFile& file : states()) flip_bit(file.path.whole(), 8192 + 5);
    options_.kv_store.mode = mode;
    const RequestOutput output = run(job_, "all damaged");
    EXPECT_EQ(output.num_stored_tokens, 0);
    EXPECT_GE(stats_.num_store_bad_files, 2);
    // Read-only files stay; damage them back.
    if (mode == KvStoreMode::kReadOnly) {
      for (const StoredFile& file : states()) flip_bit(file.path.whole(), 8192 + 5);
    }
  }
  EXPECT_EQ(run(job_, "written again").num_stored_tokens, before_answer(250));
}

TEST_P(StateStore, MissingBlocksBeforeTheStatesAreComputed) {
  run(job_, "first");
  const std::vector<StoredFile> files = list_store(store_.path()).blocks;
  for (size_t i = 0; i < files.size(); i += 3) {
    flip_bit(files[i].path.whole(), 8192 + 11);
    run(job_, "damaged block");
    EXPECT_EQ(run(job_, "written again").num_stored_tokens, before_answer(250)) << i;
  }
}

TEST_P(StateStore, FailingReadsAreComputed) {
  run(job_, "first");
  for (const int64_t from : {0, 3, 20, 45, 60}) {
    FaultyFiles files;
    files.on_read = [from](int64_t call) { return call >= from ? EIO : 0; };
    run(job_, "EIO", &files);
    run(job_, "written again");
  }
}

// Requests that share what they read, some of which are cancelled on the way.
TEST_P(StateStore, ManyAtOnceAndCancelledOnes) {
  run(job_, "first");
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 6; ++i) {
    jobs.push_back(
        {branch(job_.prompt, i % 2 == 0 ? 250 : 235, 12 + 5 * static_cast<int64_t>(i), i),
         sampled(20, 1)});
  }
  for (int num_steps = 0; num_steps < 6; ++num_steps) {
    const std::unique_ptr<LlmEngine> engine = make_store_engine(options_);
    const SequenceId gone = engine->add_request(job_.prompt, job_.params);
    for (int i = 0; i < num_steps; ++i) engine->step();
    engine->drop_request(gone);
    const std::vector<RequestOutput> outputs = run_jobs(*engine, jobs);
    compared_.expect_same(jobs, outputs, std::to_string(num_steps) + " steps");
    EXPECT_GT(engine->stats().num_stored_tokens + engine->stats().num_cached_tokens, 0);
  }
}

TEST_P(StateStore, PinsAreFoundAfterARestart) {
  options_.kv_store.min_tokens = 10'000;
  const Tokens document = random_tokens(100, 5);
  {
    LLM llm(options_);
    EXPECT_EQ(llm.pin("doc", document).num_tokens, 96);
  }
  EXPECT_EQ(run({branch(document, 100, 20, 6), sampled(20, 1)}, "question").num_stored_tokens, 96);
}

// With one place every snapshot takes that of another, unless it is being written then. Which of
// them are stored depends on the disk; but one is, at the latest that of the answer's end.
TEST_P(StateStore, FewPlacesAreEnough) {
  options_.state_cache.max_bytes = static_cast<size_t>(snapshot_bytes());
  const RequestOutput first = run(job_, "first");
  const Tokens second = joined(joined(job_.prompt, first.token_ids), random_tokens(50, 2));
  EXPECT_GT(run({second, sampled(20, 3)}, "second").num_stored_tokens, 0);
  options_.state_cache.max_bytes = 0;
  EXPECT_TRUE(contains(expect_error(ErrorCode::kInvalidArgument, [this] { plan_memory(options_); }),
                       "raise state_cache_bytes"));
}

}  // namespace
}  // namespace sluice
