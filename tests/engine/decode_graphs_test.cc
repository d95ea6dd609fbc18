// Decode steps as graphs: which shapes share a graph, when graphs are captured, launched and
// evicted, and in the engine the same bits as ungraphed steps. Arguments frozen in a graph and
// padding that affects real rows would show.
//
// Runs on the device under test. The CPU records and replays graphs too, but only in tests: rows
// there do not depend on each other, so padding that affects a row shows as a changed bit.
#include "engine/decode_graphs.h"

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "io/temp_dir.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_same;
using testing::Job;
using testing::kTinyQwen;
using testing::random_tokens;
using testing::sampled;
using testing::tiny_options;

TEST(DecodeShapes, RowsArePaddedToFewNumbers) {
  const std::vector<std::pair<int64_t, int64_t>> expected{
      {1, 1}, {2, 2}, {3, 4}, {5, 8}, {8, 8}, {9, 16}, {17, 24}, {255, 256}, {256, 256}};
  for (const auto& [num_seqs, padded] : expected) {
    EXPECT_EQ(padded_num_seqs(num_seqs, 256), padded) << num_seqs;
  }
  EXPECT_EQ(padded_num_seqs(5, 6), 6) << "never more than there is room for";
  EXPECT_EQ(padded_num_seqs(3, 3), 3);
}

TEST(DecodeShapes, ContextsArePaddedToFewNumbers) {
  EXPECT_EQ(padded_kv_tokens(1, 40960), 1024);
  EXPECT_EQ(padded_kv_tokens(1024, 40960), 1024);
  EXPECT_EQ(padded_kv_tokens(1025, 40960), 2048);
  EXPECT_EQ(padded_kv_tokens(2049, 40960), 4096);
  EXPECT_EQ(padded_kv_tokens(4097, 40960), 5120);
  EXPECT_EQ(padded_kv_tokens(7169, 40960), 8192);
  EXPECT_EQ(padded_kv_tokens(16384, 40960), 16384);
  EXPECT_EQ(padded_kv_tokens(16385, 40960), 20480);
  EXPECT_EQ(padded_kv_tokens(33000, 35000), 35000) << "never more than there is room for";
  EXPECT_EQ(padded_kv_tokens(7, 512), 512);
}

// A stream that records the calls it gets.
class FakeStream final : public Stream {
 public:
  struct FakeGraph final : Graph {
    explicit FakeGraph(int* alive_in) : alive(alive_in) { ++*alive; }
    ~FakeGraph() override { --*alive; }
    int* alive;
  };
  explicit FakeStream(Device& device) : device_(device) {}
  Device& device() const override { return device_; }
  const std::string& name() const override { return name_; }
  void copy(const CopyArgs&) override {}
  void copy_2d(const Copy2dArgs&) override {}
  void fill(std::byte*, size_t, uint8_t) override {}
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
  void launch(const Graph&) override { ++num_launches; }

  int num_captures = 0;
  int num_launches = 0;
  int num_graphs = 0;

 private:
  void begin_capture() override { ++num_captures; }
  std::unique_ptr<Graph> end_capture() override { return std::make_unique<FakeGraph>(&num_graphs); }
  void abandon_capture() noexcept override {}

  Device& device_;
  std::string name_ = "fake";
};

class DecodeGraphsTest : public ::testing::Test {
 protected:
  void run(DecodeGraphs& graphs, int64_t num_seqs) {
    graphs.run({.num_seqs = num_seqs}, [this] { ++num_enqueued_; });
  }

  std::unique_ptr<Device> device_ = make_device("cpu");
  FakeStream stream_{*device_};
  int num_enqueued_ = 0;
};

TEST_F(DecodeGraphsTest, FirstRunsThenIsCapturedThenIsLaunched) {
  DecodeGraphs graphs(stream_, 4);
  run(graphs, 1);
  EXPECT_EQ(stream_.num_captures, 0);
  EXPECT_EQ(num_enqueued_, 1);
  for (int i = 0; i < 5; ++i) run(graphs, 1);
  EXPECT_EQ(stream_.num_captures, 1);
  EXPECT_EQ(stream_.num_launches, 5);
  EXPECT_EQ(num_enqueued_, 2) << "once to run, once to be captured";
  EXPECT_EQ(graphs.num_launches(), 5);
}

TEST_F(DecodeGraphsTest, ShapesDoNotShareAGraph) {
  DecodeGraphs graphs(stream_, 8);
  const std::vector<DecodeShape> shapes{{.num_seqs = 1, .max_kv_tokens = 1024},
                                        {.num_seqs = 2, .max_kv_tokens = 1024},
                                        {.num_seqs = 1, .max_kv_tokens = 2048},
                                        {.num_seqs = 1, .max_kv_tokens = 1024, .wants_top = true}};
  for (int i = 0; i < 3; ++i) {
    for (const DecodeShape& shape : shapes) graphs.run(shape, [] {});
  }
  EXPECT_EQ(stream_.num_graphs, 4);
  EXPECT_EQ(stream_.num_launches, 8);
}

TEST_F(DecodeGraphsTest, TheOneUnusedForLongestGoes) {
  DecodeGraphs graphs(stream_, 2);
  for (const int64_t n : {1, 1, 2, 2, 1, 3, 3}) run(graphs, n);  // 3 evicts 2
  EXPECT_EQ(graphs.num_graphs(), 2);
  EXPECT_EQ(stream_.num_graphs, 2);
  EXPECT_EQ(stream_.num_captures, 3);
  run(graphs, 1);
  EXPECT_EQ(stream_.num_captures, 3);
  run(graphs, 2);
  EXPECT_EQ(stream_.num_captures, 4) << "known, so captured without running first";
  EXPECT_EQ(stream_.num_graphs, 2);
}

TEST_F(DecodeGraphsTest, WithoutGraphsEveryStepRuns) {
  DecodeGraphs graphs(stream_, 0);
  for (int i = 0; i < 4; ++i) run(graphs, 1);
  EXPECT_EQ(num_enqueued_, 4);
  EXPECT_EQ(stream_.num_launches, 0);
}

// ---- The engine ------------------------------------------------------------------------------

enum class Steps { kPlain, kPadded, kGraphs };

struct Outcome {
  std::vector<RequestOutput> outputs;
  int64_t num_graph_launches = 0;
};

// Runs all jobs together. kPlain: with the device's default plan.
Outcome run_engine(EngineOptions options, const std::vector<Job>& jobs, Steps steps) {
  options.enforce_eager = steps != Steps::kGraphs;
  DeviceOptions device_options;
  device_options.num_threads = 2;
  LlmEngine engine(
      options, {.device = make_device(options.device, device_options),
                .policies = make_policies(options),
                .adjust_plan = steps != Steps::kPlain ? testing::forced_graphs(options) : nullptr});
  Outcome run{.outputs = testing::run_jobs(engine, jobs)};
  run.num_graph_launches = engine.stats().num_graph_launches;
  return run;
}

// Jobs end at different times, so that the batch has most sizes; lengths are around block borders.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (int64_t i = 0; i < 10; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    jobs.push_back({random_tokens(9 + 7 * i, seed), sampled(static_cast<int32_t>(6 + 5 * i), i)});
  }
  return jobs;
}

TEST(DecodeGraphsInTheEngine, EqualStepsLaunchedOneByOne) {
  for (const std::string& model : testing::tiny_model_names()) {
    EngineOptions options = tiny_options(model);
    options.max_model_len.reset();
    const Outcome padded = run_engine(options, make_jobs(), Steps::kPadded);
    const Outcome graphs = run_engine(options, make_jobs(), Steps::kGraphs);
    EXPECT_EQ(padded.num_graph_launches, 0);
    EXPECT_GT(graphs.num_graph_launches, 40);
    expect_all_same(graphs.outputs, padded.outputs, model);
  }
}

TEST(DecodeGraphsInTheEngine, PaddingChangesNoBitWhereRowsAreIndependent) {
  const EngineOptions options = tiny_options(kTinyQwen);
  if (options.device != "cpu")
    GTEST_SKIP() << "skipped: products of another height round otherwise";
  const Outcome plain = run_engine(options, make_jobs(), Steps::kPlain);
  expect_all_same(run_engine(options, make_jobs(), Steps::kPadded).outputs, plain.outputs,
                  "padded");
  expect_all_same(run_engine(options, make_jobs(), Steps::kGraphs).outputs, plain.outputs,
                  "graphs");
}

// Suppressed end tokens and top log-probabilities are arguments that only some steps have.
TEST(DecodeGraphsInTheEngine, RequestsWithExtrasGetThem) {
  EngineOptions options = tiny_options(kTinyQwen);
  std::vector<Job> jobs = make_jobs();
  for (size_t i = 0; i < jobs.size(); ++i) {
    SamplingParams& params = jobs[i].params;
    if (i % 2 == 0) params.logprobs.reset();
    params.stop_token_ids = {5, 6, 7, 8, 9, 10, 11, 12};
    params.min_tokens = static_cast<int32_t>(3 * i);
  }
  const Outcome padded = run_engine(options, jobs, Steps::kPadded);
  const Outcome graphs = run_engine(options, jobs, Steps::kGraphs);
  expect_all_same(graphs.outputs, padded.outputs, "extras");
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_GE(graphs.outputs[i].token_ids.size(), 3 * i);
    EXPECT_EQ(graphs.outputs[i].logprobs.empty(), i % 2 == 0);
  }
}

// Contexts that grow across the border of a shape. The golden models' contexts end before the first
// border.
TEST(DecodeGraphsInTheEngine, LongContextsChangeTheShape) {
  const TempDir directory;
  directory.write("config.json", R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 160,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "max_position_embeddings": 4096, "tie_word_embeddings": true,
    "eos_token_id": 1, "hidden_act": "silu", "attention_bias": false})");
  EngineOptions options = tiny_options(kTinyQwen);
  options.model = directory.path();
  options.load_format = LoadFormat::kDummy;
  const std::vector<Job> jobs{{random_tokens(1010, 1), sampled(40, 1)},
                              {random_tokens(30, 2), sampled(30, 2)}};
  const Outcome padded = run_engine(options, jobs, Steps::kPadded);
  const Outcome graphs = run_engine(options, jobs, Steps::kGraphs);
  EXPECT_GT(graphs.num_graph_launches, 20);
  expect_all_same(graphs.outputs, padded.outputs, "across 1024 tokens");
}

// Bit for bit on every device, since only the place of KV differs. Steps without transfers are
// replayed; gather_graphs_test.cc tests steps that change between the two.
TEST(DecodeGraphsInTheEngine, OffloadedKvIsPaddedAndReplayedWhereItIsInPlace) {
  EngineOptions options = tiny_options(kTinyQwen);
  options.prefill_chunk_tokens = 64;
  // Room for all jobs, so that spans of whole blocks share passes as resident ones do.
  options.max_num_batched_tokens = 1024;
  const Outcome resident = run_engine(options, make_jobs(), Steps::kGraphs);
  EXPECT_GT(resident.num_graph_launches, 0);
  options.kv.offload = KvOffload::kChunked;
  options.kv.host_bytes = 4 << 20;
  options.kv.device_bytes = 0;
  const Outcome offloaded = run_engine(options, make_jobs(), Steps::kGraphs);
  EXPECT_EQ(offloaded.num_graph_launches, 0);
  expect_all_same(offloaded.outputs, resident.outputs, "offloaded");
  options.kv.device_bytes = 4 << 20;
  const Outcome in_place = run_engine(options, make_jobs(), Steps::kGraphs);
  EXPECT_EQ(in_place.num_graph_launches, resident.num_graph_launches);
  expect_all_same(in_place.outputs, resident.outputs, "in place");
}

// Policies select inside the graph, with lists that only the device reads.
TEST(DecodeGraphsInTheEngine, SelectionsAreReplayedToo) {
  for (const char* policy : {"full+quest", "full+streaming"}) {
    EngineOptions options = tiny_options(kTinyQwen);
    options.sparse.policy = policy;
    options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
    options.sparse.threshold_tokens = 0;
    if (std::string(policy) == "full+quest") options.sparse.topk_tokens = 32;
    const Outcome padded = run_engine(options, make_jobs(), Steps::kPadded);
    const Outcome graphs = run_engine(options, make_jobs(), Steps::kGraphs);
    EXPECT_GT(graphs.num_graph_launches, 40);
    expect_all_same(graphs.outputs, padded.outputs, policy);
    if (options.device == "cpu") {
      expect_all_same(graphs.outputs, run_engine(options, make_jobs(), Steps::kPlain).outputs,
                      policy);
    }
  }
}

}  // namespace
}  // namespace sluice
