// Whatever happens to the files or to a request: never wrong KV, never a failed request, never a
// trace of a load that failed.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "store/store_rig.h"
#include "support/call_gate.h"

namespace sluice {
namespace {

using testing::CallGate;
using testing::expect_all_same;
using testing::Job;
using testing::kStoreBlock;
using testing::make_store_engine;
using testing::random_tokens;
using testing::run_jobs;
using testing::run_with_store;
using testing::sampled;
using testing::store_options;
using testing::TemporaryStore;
using testing::with_store;

constexpr int64_t kDocumentTokens = 200;
constexpr int64_t kStoredTokens = 192;  // 12 blocks
constexpr size_t kStoredBlocks = 12;

struct Place {
  KvOffload mode;
  int32_t num_ranks;
};

// The document, its answer, and a store that has it.
class KvStoreFaults : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    reference_ = run_with_store(plain(), jobs_);
    run_with_store(options(), jobs_);
    ASSERT_EQ(store_.blocks().size(), kStoredBlocks);
  }

  static KvOffload mode() { return GetParam().mode; }
  static EngineOptions plain() {
    EngineOptions options = store_options(mode());
    options.tensor_parallel_size = GetParam().num_ranks;
    return options;
  }
  EngineOptions options() const { return with_store(plain(), store_); }

  // Memory for this many blocks; that of the host is of all ranks together.
  static void limit_blocks(EngineOptions& options, int64_t num_blocks) {
    const size_t block_bytes =
        make_store_engine(options)->plan().kv_layout.block_bytes_all_layers();
    options.kv.cache_bytes = options.kv.host_bytes = static_cast<size_t>(num_blocks) * block_bytes;
    *options.kv.host_bytes *= static_cast<size_t>(options.tensor_parallel_size);
    if (mode() != KvOffload::kOff) options.kv.cache_bytes.reset();
  }

  // Runs the document in an engine of its own.
  RequestOutput expect_right_answer(const std::string& what, StoreFiles* files = nullptr) {
    const auto engine = make_store_engine(options(), files);
    const std::vector<RequestOutput> outputs = run_jobs(*engine, jobs_);
    expect_all_same(outputs, reference_, what);
    engine->flush_store();
    expect_nothing_held(*engine);
    stats_ = engine->stats();
    num_warnings_ = num_warnings(*engine);
    return outputs[0];
  }

  // Of the store.
  static int64_t num_warnings(const LlmEngine& engine) {
    return std::ranges::count_if(engine.reports().warnings(),
                                 [](const auto& text) { return text.starts_with("KV store"); });
  }

  // A run moves away the bad files that it meets and writes them again, so each gets further.
  void expect_repaired() {
    int64_t before = -1;
    for (int64_t stored = 0; stored < kStoredTokens;) {
      stored = expect_right_answer("written again").num_stored_tokens;
      ASSERT_GT(stored, before);
      before = stored;
    }
  }

  static void expect_nothing_held(const LlmEngine& engine) {
    EXPECT_EQ(engine.blocks().num_used_blocks(), 0);
    EXPECT_EQ(engine.blocks().num_other_holds(), 0);
    engine.blocks().check_invariants({});
  }

  TemporaryStore store_;
  std::vector<Job> jobs_ = {{random_tokens(kDocumentTokens, 1), sampled(5, 1)}};
  std::vector<RequestOutput> reference_;
  EngineStats stats_;
  int64_t num_warnings_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Modes, KvStoreFaults,
                         ::testing::Values(Place{KvOffload::kOff, 1}, Place{KvOffload::kChunked, 1},
                                           Place{KvOffload::kLayerwise, 1},
                                           Place{KvOffload::kOff, 2},
                                           Place{KvOffload::kChunked, 4}),
                         [](const auto& one) {
                           return kv_offload_name(one.param.mode) +
                                  std::to_string(one.param.num_ranks);
                         });

void flip_bit(const std::filesystem::path& path, uint64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 4));
}

// A bit in every section of every file in turn; the next run writes the file again.
TEST_P(KvStoreFaults, DamagedFilesAreComputed) {
  const std::vector<StoredFile> files = store_.blocks();
  for (size_t i = 0; i < files.size(); ++i) {
    const uint64_t offsets[] = {20, 100, 4000, 4096 + 7, 8192 + 100, files[i].num_bytes - 1};
    flip_bit(files[i].path.whole(), offsets[i % std::size(offsets)]);
    EXPECT_LT(expect_right_answer("damaged").num_stored_tokens, kStoredTokens) << i;
    EXPECT_EQ(stats_.num_store_bad_files, 1) << i;
    EXPECT_EQ(num_warnings_, 1);
    EXPECT_EQ(expect_right_answer("written again").num_stored_tokens, kStoredTokens) << i;
  }
}

TEST_P(KvStoreFaults, MissingAndCutFilesAreComputed) {
  for (const size_t cut_to : {size_t{0}, size_t{100}, size_t{5000}, SIZE_MAX}) {
    const std::vector<StoredFile> files = store_.blocks();
    for (size_t i = 0; i < files.size(); i += 5) {
      if (cut_to == SIZE_MAX) {
        std::filesystem::remove(files[i].path.whole());
      } else {
        std::filesystem::resize_file(files[i].path.whole(), cut_to);
      }
    }
    EXPECT_LT(expect_right_answer("cut").num_stored_tokens, kStoredTokens);
    expect_repaired();
  }
}

// All blocks exchange their contents: every checksum is right, and nothing is where it belongs.
TEST_P(KvStoreFaults, ExchangedFilesAreComputed) {
  const std::vector<StoredFile> files = store_.blocks();
  for (size_t i = 0; i + 1 < files.size(); i += 2) {
    const std::filesystem::path aside = store_.path() / "aside";
    std::filesystem::rename(files[i].path.whole(), aside);
    std::filesystem::rename(files[i + 1].path.whole(), files[i].path.whole());
    std::filesystem::rename(aside, files[i + 1].path.whole());
  }
  EXPECT_EQ(expect_right_answer("exchanged").num_stored_tokens, 0);
  expect_repaired();
}

TEST_P(KvStoreFaults, FailingReadsAreComputed) {
  for (const int64_t from : {0, 3, 20}) {
    FaultyFiles files;
    files.on_read = [from](int64_t call) { return call >= from ? EIO : 0; };
    EXPECT_LT(expect_right_answer("EIO", &files).num_stored_tokens, kStoredTokens);
    EXPECT_EQ(expect_right_answer("written again").num_stored_tokens, kStoredTokens);
  }
}

TEST_P(KvStoreFaults, AFullDiskTurnsWritingOffOnce) {
  const std::vector<Job> others = {{random_tokens(150, 2), sampled(5, 2)},
                                   {random_tokens(150, 3), sampled(5, 3)}};
  const auto expected = run_with_store(plain(), others);
  FaultyFiles files;
  files.on_write = [](int64_t call) { return call >= 5 ? ENOSPC : 0; };
  {
    const auto engine = make_store_engine(options(), &files);
    expect_all_same(run_jobs(*engine, others), expected, "full");
    EXPECT_TRUE(engine->flush_store());
    EXPECT_EQ(num_warnings(*engine), 1);
    EXPECT_EQ(run_jobs(*engine, jobs_)[0].num_stored_tokens, kStoredTokens) << "reading goes on";
    EXPECT_TRUE(engine->flush_store());
    expect_nothing_held(*engine);
  }
  expect_all_same(run_with_store(options(), others), expected, "with what was written before");
}

TEST_P(KvStoreFaults, ReadOnlyChangesNothing) {
  EngineOptions read_only = options();
  read_only.kv_store.mode = KvStoreMode::kReadOnly;
  FaultyFiles files;
  const auto engine = make_store_engine(read_only, &files);
  expect_all_same(run_jobs(*engine, jobs_), reference_, "read-only");
  EXPECT_EQ(engine->stats().num_stored_tokens, kStoredTokens);
  run_jobs(*engine, {{random_tokens(150, 2), sampled(5, 2)}});
  flip_bit(store_.blocks()[0].path.whole(), 5000);
  EXPECT_TRUE(engine->flush_store());
  EXPECT_EQ(files.num_changes, 0);
  EXPECT_EQ(store_.blocks().size(), kStoredBlocks);
  expect_all_same(run_with_store(read_only, jobs_), reference_, "a damaged file");
  EXPECT_EQ(store_.blocks().size(), kStoredBlocks);
}

auto calls_through(CallGate& gate) {
  return [&gate](int64_t) {
    gate.pass();
    return 0;  // no error
  };
}

// Steps until the disk has stopped `num` reads.
void step_until_stopped(LlmEngine& engine, CallGate& gate, int num) {
  std::thread waiter([&] { gate.wait_for(num); });
  std::atomic<bool> is_stopped = false;
  std::thread setter([&] {
    waiter.join();
    is_stopped = true;
  });
  while (!is_stopped) engine.step();
  setter.join();
}

// What runs alone needs all blocks, of which reads for a cancelled request hold some.
TEST_P(KvStoreFaults, ALongTextWaitsForReadsOfACancelledRequest) {
  EngineOptions small = options();
  const int64_t num_tokens = make_store_engine(small)->plan().max_model_len - 1;
  limit_blocks(small, num_tokens / kStoreBlock + 1);
  CallGate gate;  // in calls of the disk
  FaultyFiles files;
  files.on_read = calls_through(gate);
  const auto engine = make_store_engine(small, &files);
  const SequenceId id = engine->add_request(jobs_[0].prompt, jobs_[0].params);
  step_until_stopped(*engine, gate, 4);
  engine->cancel_request(id);
  while (engine->has_unfinished()) engine->step();
  ASSERT_GT(engine->blocks().num_other_holds(), 0);
  const std::vector<int32_t> text = random_tokens(num_tokens, 3);
  auto scores = std::async(std::launch::async, [&] { return engine->solo().score(text, {}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  gate.open();
  EXPECT_EQ(scores.get().size(), text.size() - 1);
}

TEST_P(KvStoreFaults, OtherRequestsRunWhileTheDiskStandsStill) {
  CallGate gate;  // in calls of the disk
  FaultyFiles files;
  files.on_read = calls_through(gate);
  const auto engine = make_store_engine(options(), &files);
  engine->add_request(jobs_[0].prompt, jobs_[0].params);
  step_until_stopped(*engine, gate, 4);
  const Job other{random_tokens(40, 2), sampled(30, 2)};
  engine->add_request(other.prompt, other.params);
  std::vector<RequestOutput> finished;
  while (finished.empty()) testing::run_steps(*engine, 1, finished);
  expect_all_same(finished, run_with_store(plain(), {other}), "beside a load");
  gate.open();
  while (finished.size() < 2) testing::run_steps(*engine, 1, finished);
  expect_all_same({finished[1]}, reference_, "after the disk went on");
  EXPECT_EQ(finished[1].num_stored_tokens, kStoredTokens);
}

// The memory that is read into stays taken until the reads have ended, and nothing of it is found.
TEST_P(KvStoreFaults, ACancelledLoadLeavesNoTrace) {
  CallGate gate;  // in calls of the disk
  FaultyFiles files;
  files.on_read = calls_through(gate);
  const auto engine = make_store_engine(options(), &files);
  const SequenceId id = engine->add_request(jobs_[0].prompt, jobs_[0].params);
  step_until_stopped(*engine, gate, 4);
  engine->cancel_request(id);
  const std::vector<RequestOutput> outputs = engine->step();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].finish_reason, FinishReason::kCancelled);
  EXPECT_FALSE(engine->has_unfinished());
  EXPECT_GT(engine->blocks().num_other_holds(), 0);
  EXPECT_TRUE(engine->is_storing());
  gate.open();
  while (engine->is_storing()) engine->step();
  expect_nothing_held(*engine);
  EXPECT_EQ(engine->blocks().num_cached_blocks(), 0);
  expect_all_same(run_jobs(*engine, jobs_), reference_, "once more");
  EXPECT_EQ(engine->stats().num_stored_tokens, kStoredTokens);
}

// A request that decodes needs a block of one that loads: it is preempted, and reads again.
TEST_P(KvStoreFaults, APreemptedLoadLeavesNoTrace) {
  EngineOptions small = options();
  small.max_model_len = 256;
  limit_blocks(small, 16);
  const Job older{random_tokens(20, 2), sampled(60, 2)};
  EngineOptions without = small;
  without.kv_store.dir.reset();
  const auto expected = run_with_store(without, {older});

  CallGate gate;  // in calls of the disk
  FaultyFiles files;
  files.on_read = calls_through(gate);
  const auto engine = make_store_engine(small, &files);
  engine->add_request(older.prompt, older.params);
  std::vector<RequestOutput> finished;
  testing::run_steps(*engine, 1, finished);
  engine->add_request(jobs_[0].prompt, jobs_[0].params);
  while (engine->stats().num_preemptions == 0) testing::run_steps(*engine, 1, finished);
  while (finished.empty()) testing::run_steps(*engine, 1, finished);
  expect_all_same({finished[0]}, expected, "beside a load");
  gate.open();
  while (finished.size() < 2) testing::run_steps(*engine, 1, finished);
  expect_all_same({finished[1]}, reference_, "preempted while it loaded");
  engine->flush_store();
  while (engine->is_storing()) engine->step();  // reads that nothing waits for any more
  expect_nothing_held(*engine);
}

// Little memory and a disk that stands still: blocks are evicted before they are written.
TEST_P(KvStoreFaults, SkipsWhatTheDiskCannotTake) {
  EngineOptions small = options();
  small.max_model_len = 256;
  limit_blocks(small, 40);
  CallGate gate;  // in calls of the disk
  FaultyFiles files;
  files.on_write = calls_through(gate);
  const auto engine = make_store_engine(small, &files);
  for (uint64_t seed = 10; seed < 16; ++seed) {
    const std::vector<Job> jobs = {{random_tokens(180, seed), sampled(3, 1)}};
    expect_all_same(run_jobs(*engine, jobs), run_with_store(plain(), jobs), "");
  }
  EXPECT_GT(engine->stats().num_store_blocks_skipped, 0);
  EXPECT_LE(engine->blocks().num_other_holds(), 8);
  gate.open();
  EXPECT_TRUE(engine->flush_store());
  expect_nothing_held(*engine);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.num_store_blocks_written + stats.num_store_blocks_skipped, 6 * 11);
}

// Reading is worth its time if it is faster than computing: rates are of the clock, and of the
// disk.
TEST_P(KvStoreFaults, ReadsOnlyWhatIsFasterThanComputing) {
  const std::vector<Job> other = {{random_tokens(150, 2), sampled(1, 2)}};
  run_with_store(options(), other);
  for (const bool computing_is_slow : {true, false}) {
    int64_t now_ns = 0;
    LlmEngine engine(options(), {.device = make_device("cpu", {.num_threads = 2}), .now_ns = [&] {
                                   return now_ns += computing_is_slow ? 1'000'000'000'000 : 1;
                                 }});
    run_jobs(engine, {{random_tokens(100, computing_is_slow ? 3 : 4), sampled(1, 3)}});
    EXPECT_EQ(run_jobs(engine, other)[0].num_stored_tokens, 144) << "the first read measures";
    EXPECT_EQ(run_jobs(engine, jobs_)[0].num_stored_tokens, computing_is_slow ? kStoredTokens : 0);
  }
}

// A limit for ten blocks: leaves go first, so beginnings are still found.
TEST_P(KvStoreFaults, EvictionKeepsBeginnings) {
  const uint64_t file_bytes = store_.blocks()[0].num_bytes;
  EngineOptions small = options();
  small.kv_store.max_bytes = 10 * file_bytes;
  run_with_store(small, {{random_tokens(100, 2), sampled(1, 2)}});
  EXPECT_LE(store_.blocks().size(), 10u);
  const RequestOutput output = expect_right_answer("evicted");
  EXPECT_GT(output.num_stored_tokens, 0);
  EXPECT_LT(output.num_stored_tokens, kStoredTokens);
  const auto other = run_with_store(options(), {{random_tokens(100, 2), sampled(1, 2)}});
  EXPECT_GT(other[0].num_stored_tokens, 0);
}

// Two engines on one directory, at once, with documents that they share.
TEST_P(KvStoreFaults, TwoEnginesShareADirectory) {
  std::vector<Job> jobs;
  for (uint64_t seed = 1; seed < 8; ++seed)
    jobs.push_back({random_tokens(150, seed), sampled(3, 1)});
  const auto expected = run_with_store(plain(), jobs);
  std::vector<std::vector<RequestOutput>> outputs(2);
  std::vector<std::thread> threads;
  for (auto& mine : outputs) {
    threads.emplace_back([&] {
      EngineOptions small = options();
      small.kv_store.max_bytes = 40 * store_.blocks()[0].num_bytes;
      for (const Job& job : jobs) {
        mine.push_back(run_with_store(small, {job})[0]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : outputs) expect_all_same(mine, expected, "two engines");
}

}  // namespace
}  // namespace sluice
