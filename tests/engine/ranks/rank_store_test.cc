// The KV store of several ranks: blocks with the heads of all of them, found by as many ranks
// again, and never a wrong number.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::make_store_engine;
using testing::random_tokens;
using testing::run_jobs;
using testing::run_with_store;
using testing::sampled;
using testing::storable_tokens;
using testing::store_options;
using testing::TemporaryStore;
using testing::with_store;

constexpr KvOffload kModes[] = {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise};

// The model has two KV heads, so of four ranks pairs have the same one.
EngineOptions rank_options(KvOffload mode, int32_t num_ranks) {
  EngineOptions options = store_options(mode);
  options.device = testing::test_device_spec();
  options.tensor_parallel_size = num_ranks;
  return options;
}

// Around the borders of the first blocks, and a long one.
std::vector<Job> some_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 16, 17, 33, 64, 250}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(12, length)});
  }
  return jobs;
}

void expect_stored(const std::vector<RequestOutput>& outputs, const std::vector<Job>& jobs,
                   const std::string& what) {
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(outputs[i].num_stored_tokens, storable_tokens(std::ssize(jobs[i].prompt)))
        << what << ", prompt " << i;
  }
}

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

uint64_t number_at(const std::string& bytes, size_t at) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

class RankStore : public ::testing::TestWithParam<int32_t> {
 protected:
  void SetUp() override {
    if (!testing::can_have(GetParam())) GTEST_SKIP() << "skipped: no " << GetParam() << " GPUs";
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, RankStore, ::testing::Values(2, 4));

// What each mode has written, each mode reads, after a restart.
TEST_P(RankStore, RestartEqualsNoRestartInEveryMode) {
  const std::vector<Job> jobs = some_jobs();
  const auto without = run_with_store(rank_options(KvOffload::kOff, GetParam()), jobs);
  for (const KvOffload writer : kModes) {
    const TemporaryStore store;
    const EngineOptions stored = with_store(rank_options(writer, GetParam()), store);
    const auto cold = run_with_store(stored, jobs);
    expect_all_same(cold, without, kv_offload_name(writer));
    EXPECT_EQ(testing::sum_of_stored(cold), 0);
    for (const KvOffload reader : kModes) {
      const auto warm = run_with_store(with_store(rank_options(reader, GetParam()), store), jobs);
      const std::string what =
          std::string(kv_offload_name(writer)) + " to " + kv_offload_name(reader);
      expect_all_same(warm, without, what);
      expect_stored(warm, jobs, what);
    }
  }
}

// Each rank makes the summaries of its heads anew.
TEST_P(RankStore, PoliciesWithSummariesReadTheSameBits) {
  const std::vector<Job> jobs = some_jobs();
  for (const KvOffload mode : kModes) {
    EngineOptions options = rank_options(mode, GetParam());
    options.sparse.policy = "full+quest";
    options.sparse.page_tokens = options.sparse.recent_tokens = options.sparse.sink_tokens = 16;
    options.sparse.threshold_tokens = 0;
    options.sparse.topk_tokens = 32;
    const auto without = run_with_store(options, jobs);
    const TemporaryStore store;
    run_with_store(with_store(options, store), jobs);
    const auto warm = run_with_store(with_store(options, store), jobs);
    expect_all_same(warm, without, kv_offload_name(mode));
    expect_stored(warm, jobs, kv_offload_name(mode));
  }
}

// Bits differ from the second layer on, so names do.
TEST(RankStores, OtherNumbersOfRanksShareNothing) {
  const TemporaryStore store;
  const std::vector<Job> jobs = {{random_tokens(100, 1), sampled(8, 1)}};
  for (const int32_t num_ranks : {1, 2, 4}) {
    if (!testing::can_have(num_ranks)) continue;
    const EngineOptions options = rank_options(KvOffload::kOff, num_ranks);
    const auto first = run_with_store(with_store(options, store), jobs);
    EXPECT_EQ(first[0].num_stored_tokens, 0) << num_ranks;
    expect_all_same(first, run_with_store(options, jobs), std::to_string(num_ranks));
  }
  for (const int32_t num_ranks : {1, 2, 4}) {
    if (!testing::can_have(num_ranks)) continue;
    const auto again =
        run_with_store(with_store(rank_options(KvOffload::kOff, num_ranks), store), jobs);
    EXPECT_EQ(again[0].num_stored_tokens, 96) << num_ranks;
  }
}

// A model that differs in what the last rank alone reads has other names for all its blocks.
TEST(RankStores, TheWeightsOfEveryRankCount) {
  if (!testing::can_have(2)) GTEST_SKIP() << "skipped: no second GPU";
  const TempDir dir;
  EngineOptions options = rank_options(KvOffload::kOff, 2);
  for (const auto& entry : std::filesystem::directory_iterator(options.model)) {
    std::filesystem::copy(entry.path(), dir.path());
  }
  options.model = dir.path();
  const TemporaryStore store;
  const std::vector<Job> jobs = {{random_tokens(100, 1), sampled(8, 1)}};
  run_with_store(with_store(options, store), jobs);
  EXPECT_EQ(run_with_store(with_store(options, store), jobs)[0].num_stored_tokens, 96);
  const std::filesystem::path path = dir.path() / "model.safetensors";
  std::string bytes = bytes_of_file(path);
  const uint64_t header_bytes = number_at(bytes, 0);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  const auto& gate = header.at("model.layers.0.mlp.gate_proj.weight").at("data_offsets");
  bytes[8 + header_bytes + gate.at(1).get<size_t>() - 100] ^= 4;  // in its last rows
  std::ofstream(path, std::ios::binary) << bytes;
  const auto other = run_with_store(with_store(options, store), jobs);
  EXPECT_EQ(other[0].num_stored_tokens, 0);
  expect_all_same(other, run_with_store(options, jobs), "the other model");
}

// ---- Files -------------------------------------------------------------------------------------

// Offsets in the header of a file, and of KV behind the ids of 16 tokens (docs/kv_store.md).
constexpr size_t kPositionAt = 120, kLayerBytesAt = 136, kKvBegin = 8192;

// Keys and values of the first layer by position of their block.
std::map<uint64_t, std::string> first_layers(const TemporaryStore& store) {
  std::map<uint64_t, std::string> layers;
  for (const StoredFile& file : store.blocks()) {
    const std::string bytes = bytes_of_file(file.path.whole());
    layers[number_at(bytes, kPositionAt)] = bytes.substr(kKvBegin, number_at(bytes, kLayerBytesAt));
  }
  return layers;
}

// No sum of ranks comes before the keys of the first layer, so their bytes are those of one rank:
// the heads of all ranks in order.
TEST_P(RankStore, FilesHaveTheLayoutOfOneRank) {
  const std::vector<Job> jobs = {{random_tokens(100, 1), sampled(1, 1)}};
  const TemporaryStore one, several;
  run_with_store(with_store(rank_options(KvOffload::kOff, 1), one), jobs);
  run_with_store(with_store(rank_options(KvOffload::kOff, GetParam()), several), jobs);
  const auto expected = first_layers(one);
  EXPECT_EQ(expected.size(), 6u);
  EXPECT_EQ(first_layers(several), expected);
}

// A bit of each rank's heads in each layer, in a file in the middle: blocks before it are read.
TEST_P(RankStore, ADamagedPartOfOneRankIsComputed) {
  const std::vector<Job> jobs = {{random_tokens(100, 1), sampled(8, 1)}};
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked}) {
    const EngineOptions options = rank_options(mode, GetParam());
    const auto without = run_with_store(options, jobs);
    const TemporaryStore store;
    run_with_store(with_store(options, store), jobs);
    for (size_t half = 0; half < 4; ++half) {  // of layers: two, with a KV head each
      std::filesystem::path path;
      uint64_t layer_bytes = 0;
      for (const StoredFile& file : store.blocks()) {
        const std::string bytes = bytes_of_file(file.path.whole());
        layer_bytes = number_at(bytes, kLayerBytesAt);
        if (number_at(bytes, kPositionAt) == 48) path = file.path.whole();
      }
      std::string bytes = bytes_of_file(path);
      bytes[kKvBegin + half * layer_bytes / 2 + 100] ^= 4;
      std::ofstream(path, std::ios::binary) << bytes;
      const auto engine = make_store_engine(with_store(options, store));
      const auto outputs = run_jobs(*engine, jobs);
      expect_all_same(outputs, without, "damaged");
      EXPECT_EQ(outputs[0].num_stored_tokens, 48) << half;
      engine->flush_store();
      EXPECT_EQ(engine->stats().num_store_bad_files, 1);
    }
    expect_stored(run_with_store(with_store(options, store), jobs), jobs, "written again");
  }
}

// The plan, which is that of each rank, has the memory that its port takes. The last ranks have
// fewer rows of the output head.
TEST_P(RankStore, EachRankTakesWhatThePlanSays) {
  for (const KvOffload mode : kModes) {
    const TemporaryStore store;
    std::vector<Device*> devices(static_cast<size_t>(GetParam()));
    LlmEngine::Parts parts{.device = make_device("cpu", {.num_threads = 1})};
    devices[0] = parts.device.get();
    parts.make_device = [&](int32_t rank) {
      auto device = make_device("cpu", {.num_threads = 1});
      devices[static_cast<size_t>(rank)] = device.get();
      return device;
    };
    const LlmEngine engine(with_store(rank_options(mode, GetParam()), store), std::move(parts));
    const MemoryPlan& plan = engine.plan().memory;
    for (const Device* device : devices) {
      EXPECT_EQ(device->peak_allocated_bytes(MemoryKind::kPinned), plan.pinned_used_bytes());
      EXPECT_LE(device->peak_allocated_bytes(MemoryKind::kDevice), plan.device_used_bytes());
    }
  }
}

// The ports of all ranks are there by then, and all ranks end.
TEST_P(RankStore, ADirectoryThatCannotBeOpenedEndsTheStart) {
  EngineOptions options = rank_options(KvOffload::kOff, GetParam());
  options.kv_store.dir = "/proc/no-store";
  expect_error_with(ErrorCode::kIo, [&] { make_store_engine(options); }, {"/proc/no-store"});
}

// An engine that ends while it reads and writes, and one whose requests are left.
TEST_P(RankStore, EndsWhileBlocksAreOnTheirWay) {
  const std::vector<Job> jobs = some_jobs();
  for (const KvOffload mode : kModes) {
    const TemporaryStore store;
    const EngineOptions options = with_store(rank_options(mode, GetParam()), store);
    for (int num_steps = 0; num_steps < 6; ++num_steps) {
      const auto engine = make_store_engine(options);
      for (const Job& job : jobs) engine->add_request(job.prompt, job.params);
      for (int i = 0; i < num_steps; ++i) engine->step();
    }
    expect_all_same(run_with_store(options, jobs),
                    run_with_store(rank_options(mode, GetParam()), jobs), kv_offload_name(mode));
  }
}

}  // namespace
}  // namespace sluice
