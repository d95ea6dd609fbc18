// Hybrids over several ranks: each has whole key heads of the linear layers, with their states; so
// the model is that of one rank up to the place where sums are rounded, and places of KV, snapshots
// and the store change no bit.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_copies.h"
#include "engine/hybrid/hybrid_prompts.h"
#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "engine/store/store_engine.h"
#include "io/expect_error.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/model_directory.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "model/model_config.h"
#include "model/shard.h"
#include "model/weights.h"
#include "support/loaded_weights.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"
#include "support/weight_copies.h"

namespace sluice {
namespace {

using testing::before_answer;
using testing::branch;
using testing::Compared;
using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::median_nmse;
using testing::nmse;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::run_with_store;
using testing::sampled;
using testing::TemporaryStore;
using testing::Tokens;
using testing::with_store;
using testing::WrittenTensor;

// What is left of a tensor: ranges of its rows, and its first columns.
struct Kept {
  std::vector<std::pair<int64_t, int64_t>> rows;  // first one, number; empty: all
  int64_t num_columns = 0;                        // 0: all
};

// A tiny model with fewer heads, which two ranks can divide.
struct EvenModel {
  const char* tiny_model;
  nlohmann::json heads;              // of config.json
  std::map<std::string, Kept> kept;  // by the end of the name
};

const EvenModel kNested = {"qwen35moe-hybrid-experts8",  // 2 key heads with 3 value heads each
                           {{"num_attention_heads", 4}, {"num_key_value_heads", 4}},
                           {{"self_attn.q_proj.weight", {.rows = {{0, 4 * 2 * 16}}}},
                            {"self_attn.k_proj.weight", {.rows = {{0, 4 * 16}}}},
                            {"self_attn.v_proj.weight", {.rows = {{0, 4 * 16}}}},
                            {"self_attn.o_proj.weight", {.num_columns = 4 * 16}}}};

// Ranks share the one KV head. Keys of 12 channels, three value heads of 20 each.
const EvenModel kGrouped = {
    "qwen3next-hybrid-experts6",
    {{"num_attention_heads", 2}, {"linear_num_key_heads", 2}, {"linear_num_value_heads", 6}},
    {{"self_attn.q_proj.weight", {.rows = {{0, 2 * 2 * 32}}}},
     {"self_attn.o_proj.weight", {.num_columns = 2 * 32}},
     {"linear_attn.in_proj_qkvz.weight", {.rows = {{0, 2 * 144}}}},
     {"linear_attn.in_proj_ba.weight", {.rows = {{0, 2 * 6}}}},
     {"linear_attn.conv1d.weight", {.rows = {{0, 2 * 12}, {36, 2 * 12}, {72, 6 * 20}}}},
     {"linear_attn.A_log", {.rows = {{0, 6}}}},
     {"linear_attn.dt_bias", {.rows = {{0, 6}}}},
     {"linear_attn.out_proj.weight", {.num_columns = 6 * 20}}}};

WrittenTensor cut(const CheckpointTensor& tensor, const Kept& kept) {
  std::vector<std::byte> bytes(tensor.num_bytes);
  tensor.read(0, bytes);
  WrittenTensor result{std::string(tensor.name), tensor.dtype, testing::shape_of(tensor), {}};
  auto rows = kept.rows;
  if (rows.empty()) rows = {{0, result.shape[0]}};
  const size_t row_bytes = bytes.size() / static_cast<size_t>(result.shape[0]);
  size_t kept_bytes = row_bytes;
  if (kept.num_columns > 0) {
    kept_bytes = static_cast<size_t>(kept.num_columns) * dtype_bytes(tensor.dtype);
    result.shape.back() = kept.num_columns;
  }
  result.shape[0] = 0;
  for (const auto& [first, count] : rows) {
    result.shape[0] += count;
    for (int64_t row = first; row < first + count; ++row) {
      const auto begin = bytes.begin() + row * static_cast<std::ptrdiff_t>(row_bytes);
      result.bytes.insert(result.bytes.end(), begin,
                          begin + static_cast<std::ptrdiff_t>(kept_bytes));
    }
  }
  return result;
}

void write_config(const EvenModel& model, const std::filesystem::path& directory) {
  nlohmann::json config =
      read_json_file(testing::tiny_model_path(model.tiny_model) / "config.json");
  (config.contains("text_config") ? config["text_config"] : config).update(model.heads);
  std::ofstream(directory / "config.json") << config;
}

void write_even(const EvenModel& model, const std::filesystem::path& directory) {
  write_config(model, directory);
  const Checkpoint checkpoint{ModelDirectory(testing::tiny_model_path(model.tiny_model))};
  std::vector<WrittenTensor> tensors;
  for (const std::string& name : checkpoint.names()) {
    Kept kept;
    for (const auto& [end, some] : model.kept) {
      if (name.ends_with(end)) kept = some;
    }
    tensors.push_back(cut(checkpoint.tensor(name, *checkpoint.shape_of(name)), kept));
  }
  std::vector<SafetensorsInput> inputs;
  for (const WrittenTensor& t : tensors) {
    inputs.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape, .bytes = t.bytes});
  }
  write_safetensors(directory / "model.safetensors", inputs);
}

std::vector<float> logits_of(EngineOptions options, int32_t num_ranks, const Tokens& tokens) {
  options.tensor_parallel_size = num_ranks;
  return LLM(options).trace(tokens, {}).logits.data;
}

class RankHybrids : public ::testing::TestWithParam<const EvenModel*> {
 protected:
  void SetUp() override {
    if (!testing::testing_cpu()) GTEST_SKIP() << "skipped: CUDA has no kernel for these widths";
    write_even(*GetParam(), dir_.path());
  }
  EngineOptions options(int32_t num_ranks = 2) const {
    EngineOptions options = testing::tiny_options(GetParam()->tiny_model);
    options.model = dir_.path();
    options.tensor_parallel_size = num_ranks;
    return options;
  }

  const TempDir dir_;
};

INSTANTIATE_TEST_SUITE_P(Models, RankHybrids, ::testing::Values(&kNested, &kGrouped),
                         [](const auto& one) {
                           return std::string(one.param == &kNested ? "nested" : "grouped");
                         });

// One head at the place of another, or a tap of another channel, changes logits by their size.
// Sums that are rounded in other places change an expert here and there, so the median row counts:
// its error is that of transformers in bf16, which states carry on (docs/models.md).
TEST_P(RankHybrids, LogitsAreThoseOfOneRank) {
  const Tokens tokens = random_tokens(80, 5);
  const double error =
      median_nmse(logits_of(options(), 2, tokens), logits_of(options(), 1, tokens), tokens.size());
  const double bf16 = testing::read_golden(GetParam()->tiny_model).bf16_nmse;
  std::printf("%s: median NMSE of two ranks against one %.2e; transformers in bf16 %.2e\n",
              GetParam()->tiny_model, error, bf16);
  EXPECT_GT(error, 0) << "nothing was divided";
  EXPECT_LT(error, bf16);
}

// Rows of a matrix with `num_columns` numbers each, or of taps.
std::vector<float> rows_of(const std::vector<float>& all, int64_t num_columns, int64_t begin,
                           int64_t count) {
  const auto first = all.begin() + begin * num_columns;
  return {first, first + count * num_columns};
}

// Numbers of a layer, rows first: a tap's are those of one channel.
struct LayerNumbers {
  std::vector<float> in, gates, out, taps, a_log, dt_bias;
};

std::vector<float> floats_of(const TensorView& tensor) {
  const auto* first = tensor.data<float>();
  return {first, first + tensor.num_elements()};
}

// [rows, columns] from columns.
std::vector<float> turned(const std::vector<float>& columns, int64_t num_rows) {
  const auto rows = static_cast<size_t>(num_rows);
  const size_t cols = columns.size() / rows;
  std::vector<float> result(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) result[i % rows * cols + i / rows] = columns[i];
  return result;
}

LayerNumbers numbers_of(const Weights& weights, LayerId layer, Stream& stream) {
  const auto& w = std::get<DeltaNet::Weights>(weights.layer(layer).mixer);
  const auto matrix = [&](const PackedWeight& weight) {
    return turned(testing::columns_of(weight, stream), weight.num_rows);
  };
  return {.in = matrix(w.in),
          .gates = matrix(w.gates),
          .out = testing::columns_of(w.out, stream),  // its columns are cut
          .taps = turned(floats_of(w.taps), w.taps.dim(1)),
          .a_log = floats_of(w.a_log),
          .dt_bias = floats_of(w.dt_bias)};
}

// Each rank has the numbers of its heads, bit for bit, in the order of one rank's.
TEST_P(RankHybrids, EachRankLoadsTheRowsOfItsHeads) {
  const auto device = testing::make_test_device();
  const auto stream = device->make_stream({.name = "test", .num_threads = 1});
  const ModelDirectory directory(dir_.path());
  const Checkpoint checkpoint(directory);
  const auto load = [&](const Shard& shard) {
    auto weights =
        std::make_unique<Weights>(shard_of(read_model_config(directory), shard), *device);
    weights->load(checkpoint, *stream);
    return weights;
  };
  const ModelConfig config = read_model_config(directory);
  const DeltaShape& shape = config.states().shape;
  const int64_t hidden = config.hidden_size, k = shape.k_width(), v = shape.v_width();
  const int64_t heads = shape.num_v_heads, taps = shape.num_taps;
  const LayerNumbers all = numbers_of(*load({}), LayerId(0), *stream);
  for (int32_t rank = 0; rank < 2; ++rank) {
    const LayerNumbers part =
        numbers_of(*load({.rank = rank, .num_ranks = 2}), LayerId(0), *stream);
    const auto half = [&](const std::vector<float>& some, int64_t columns,
                          const std::vector<int64_t>& widths) {
      std::vector<float> joined;
      int64_t begin = 0;
      for (const int64_t width : widths) {
        const auto rows = rows_of(some, columns, begin + rank * width / 2, width / 2);
        joined.insert(joined.end(), rows.begin(), rows.end());
        begin += width;
      }
      return joined;
    };
    EXPECT_EQ(part.in, half(all.in, hidden, {k, k, v, v}));
    EXPECT_EQ(part.gates, half(all.gates, hidden, {heads, heads}));
    EXPECT_EQ(part.out, half(all.out, hidden, {v}));
    EXPECT_EQ(part.taps, half(all.taps, taps, {k, k, v}));
    EXPECT_EQ(part.a_log, half(all.a_log, 1, {heads}));
    EXPECT_EQ(part.dt_bias, half(all.dt_bias, 1, {heads}));
  }
}

// Scales and zero points go with the rows and columns of a rank. One that read others' would be off
// by a tenth and more.
TEST(RankHybridFormats, LogitsAreThoseOfOneRank) {
  if (!testing::can_have(2)) GTEST_SKIP() << "skipped: no second GPU";
  const Tokens tokens = random_tokens(60, 5);
  const auto check = [&](const testing::Copies& copies, const std::string& what) {
    EngineOptions options = testing::tiny_options("qwen3-group2-tied");
    options.model = copies.quantized.path();
    options.max_model_len = 256;
    const double error =
        median_nmse(logits_of(options, 2, tokens), logits_of(options, 1, tokens), tokens.size());
    std::printf("%s: median NMSE of two ranks against one %.2e\n", what.c_str(), error);
    EXPECT_GT(error, 0) << what << ": nothing was divided";
    EXPECT_LT(error, 3e-3) << what;
  };
  testing::HybridSizes dense = testing::dense_hybrid();
  dense.intermediate = 128;  // whole groups of 32 columns on each rank
  for (const testing::HybridSizes& sizes : {dense, testing::grouped_hybrid()}) {
    for (const WeightScales scales : {WeightScales::kRows, WeightScales::kTensor}) {
      check(*testing::write_fp8(sizes, scales), sizes.architecture + ", FP8");
    }
    check(*testing::write_integers(sizes, {.form = IntegerForm::kPackQuantized, .group = -1}),
          sizes.architecture + ", 4 bits by row");
  }
  testing::HybridSizes blocks = testing::wide(dense);
  blocks.intermediate = 256;
  check(*testing::write_fp8(blocks, WeightScales::kBlocks), "FP8 in blocks");
  for (const IntegerForm form :
       {IntegerForm::kPackQuantized, IntegerForm::kAwq, IntegerForm::kGptq}) {
    check(*testing::write_integers(dense, {.form = form, .group = 32}), "4 bits in groups");
  }
}

// Random weights of a measurement are those of one rank as well.
TEST_P(RankHybrids, DummyWeightsAreThoseOfOneRank) {
  const TempDir dir;
  write_config(*GetParam(), dir.path());
  EngineOptions dummy = options();
  dummy.model = dir.path();
  dummy.load_format = LoadFormat::kDummy;
  const Tokens tokens = random_tokens(80, 6);
  EXPECT_LT(nmse(logits_of(dummy, 2, tokens), logits_of(dummy, 1, tokens)), 1e-3);
}

// Each rank has the records of its heads, and steps over them again.
void expect_same_bits_with_drafts(EngineOptions options) {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 17, 60, 150}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(30, length)});
  }
  const std::vector<RequestOutput> expected = run_engine(options, jobs);
  const auto texts = testing::texts_of(jobs, expected);
  options.speculative.method = SpeculativeMethod::kNgram;
  options.speculative.num_tokens = 5;
  const auto compare = [&](const EngineOptions& drafting, const char* what) {
    const bool is_ngram = drafting.speculative.method == SpeculativeMethod::kNgram;
    const auto most = [](int64_t position) { return testing::scramble(position) % 4 != 0; };
    const auto engine = testing::make_engine(
        drafting, is_ngram ? std::make_unique<testing::KnownTexts>(texts, most) : nullptr);
    expect_all_alike(run_jobs(*engine, jobs), expected, what, 0.5f);
    EXPECT_GT(engine->observations().speculation.num_accepted_tokens, 0) << what;
  };
  compare(options, "ngram");
  compare(testing::with_offload(options, KvOffload::kChunked), "offloaded");
  options.speculative.method = SpeculativeMethod::kSparse;
  options.sparse.policy = "full+quest";
  options.sparse.page_tokens = options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
  options.sparse.topk_tokens = 32;
  compare(options, "sparse");
}

void expect_same_bits_in_all_places(const EngineOptions& options) {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 3, 17, 70, 150}) {
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)), sampled(20, length)});
  }
  const std::vector<RequestOutput> expected = run_engine(options, jobs);
  for (const testing::Place& place : testing::comparable_places(options)) {
    expect_all_same(run_engine(place.put(options), jobs), expected, place.name);
  }
  if (!testing::testing_cpu()) return;  // rows of large passes have other kernels there
  EngineOptions alone = options;
  alone.max_num_seqs = 1;
  expect_all_same(run_engine(alone, jobs), expected, "alone");
}

// Each rank saves and restores the states of its heads.
void expect_snapshots_of_every_rank(const EngineOptions& options) {
  Compared compared(options);
  LLM llm(options);
  const Tokens prompt = random_tokens(250, 1);
  EXPECT_EQ(compared.cached(llm, prompt, "first"), 0);
  EXPECT_EQ(compared.cached(llm, prompt, "again"), before_answer(250));
  const Tokens other = branch(prompt, before_answer(250), 90, 2);
  EXPECT_EQ(compared.cached(llm, other, "branch"), before_answer(250));
}

// A snapshot in the store has the states of all ranks; those of another number are not found.
void expect_states_in_store(const EngineOptions& options) {
  Compared compared(options);
  const std::vector<Job> jobs = {{random_tokens(250, 1), sampled(24, 1)},
                                 {random_tokens(100, 2), sampled(24, 2)}};
  for (const KvOffload mode : {KvOffload::kOff, KvOffload::kChunked, KvOffload::kLayerwise}) {
    const TemporaryStore store;
    EngineOptions stored = options;
    if (mode != KvOffload::kOff) stored = testing::with_offload(stored, mode);
    stored.kv_store.min_tokens = 0;
    stored = with_store(stored, store);
    compared.expect_same(jobs, run_with_store(stored, jobs), "first");
    const std::vector<RequestOutput> warm = run_with_store(stored, jobs);
    compared.expect_same(jobs, warm, kv_offload_name(mode));
    EXPECT_EQ(warm[0].num_stored_tokens, before_answer(250));
    EXPECT_EQ(warm[1].num_stored_tokens, before_answer(100));
    stored.tensor_parallel_size = 1;
    EXPECT_EQ(run_with_store(stored, jobs)[0].num_stored_tokens, 0);
  }
}

TEST_P(RankHybrids, PlacesOfKvAndNeighboursChangeNoBit) {
  expect_same_bits_in_all_places(options());
}
TEST_P(RankHybrids, DraftsChangeNoBit) { expect_same_bits_with_drafts(options()); }
TEST_P(RankHybrids, SnapshotsGoOnOnEveryRank) { expect_snapshots_of_every_rank(options()); }
TEST_P(RankHybrids, AStoreKeepsTheStatesOfAllRanks) { expect_states_in_store(options()); }

// The same where two GPUs are, of models whose widths CUDA has kernels for.
TEST(RankHybridsOnGpus, KeepTheirBits) {
  if (testing::testing_cpu()) GTEST_SKIP() << "skipped: RankHybrids tries it on CPUs";
  if (!testing::can_have(2)) GTEST_SKIP() << "skipped: no second GPU";
  for (const testing::HybridSizes& sizes :
       {testing::dense_hybrid(), testing::grouped_hybrid(), testing::hybrid_of_experts()}) {
    SCOPED_TRACE(sizes.architecture);
    const TempDir dir;
    testing::write_hybrid(sizes, dir.path());
    EngineOptions options = testing::tiny_options("qwen3-group2-tied");
    options.model = dir.path();
    options.tensor_parallel_size = 2;
    expect_same_bits_in_all_places(options);
    expect_same_bits_with_drafts(options);
    expect_snapshots_of_every_rank(options);
    expect_states_in_store(options);
  }
}

TEST_P(RankHybrids, ANumberThatDividesNoKeyHeadsIsRefused) {
  expect_error_with(ErrorCode::kInvalidArgument, [&] { const LLM llm(options(4)); },
                    {"tensor_parallel_size is 4", "2 key heads of linear layers"});
}

}  // namespace
}  // namespace sluice
