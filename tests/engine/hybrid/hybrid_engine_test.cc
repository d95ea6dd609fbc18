// Hybrids of the gated delta rule and attention: the forms that their files have, what is refused,
// and what the engine promises of every model, with states that follow the sequences.
//
// Logits and greedy text are compared in golden_test; batches and chunks of all families in
// invariants_test.
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/hybrid/hybrid_prompts.h"
#include "engine/llm_engine.h"
#include "io/expect_error.h"
#include "io/file.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "sluice/inspect.h"
#include "sluice/llm.h"
#include "sluice/structured_output.h"
#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::expect_all_alike;
using testing::expect_all_same;
using testing::Job;
using testing::near_tie_nats;
using testing::random_tokens;
using testing::run_engine;
using testing::run_jobs;
using testing::sampled;
using testing::tiny_options;

constexpr const char* kModel = "qwen35-hybrid-nested";  // 3 linear layers and a full one

std::filesystem::path path_of(const std::string& model) {
  return testing::source_dir() / "tests/golden/models" / model;
}

std::vector<Job> make_jobs() {
  std::vector<Job> jobs;
  for (const int64_t length : {1, 2, 3, 4, 17, 70, 150}) {
    const auto seed = static_cast<uint64_t>(length);
    jobs.push_back({random_tokens(length, seed), sampled(20, static_cast<int64_t>(seed))});
  }
  return jobs;
}

// ---- Promises of the engine -------------------------------------------------------------------

class Hybrids : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Models, Hybrids, ::testing::ValuesIn(testing::hybrids()),
                         [](const auto& made) {
                           std::string name = made.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST_P(Hybrids, ChunksBatchesThreadsAndThePlaceOfKvChangeNoBit) {
  const std::vector<Job> jobs = make_jobs();
  const EngineOptions options = tiny_options(GetParam());
  std::vector<RequestOutput> expected;
  for (const Job& job : jobs) expected.push_back(run_engine(options, {job})[0]);
  const auto expect_same = [&](const char* what, const auto& change) {
    EngineOptions changed = options;
    change(changed);
    expect_all_alike(run_engine(changed, jobs), expected, what, near_tie_nats(GetParam()));
  };
  expect_same("together", [](EngineOptions&) {});
  expect_same("two at once", [](EngineOptions& o) { o.max_num_seqs = 2; });
  expect_same("one thread", [](EngineOptions& o) { o.num_threads = 1; });
  expect_same("three threads", [](EngineOptions& o) { o.num_threads = 3; });
  for (const int32_t chunk : {1, 2, 3, 7, 64}) {
    expect_same("chunks", [&](EngineOptions& o) { o.prefill_chunk_tokens = chunk; });
  }
  for (const char* mode : {"chunked", "layerwise"}) {
    expect_same(mode, [&](EngineOptions& o) {
      o = testing::with_offload(o, testing::kv_offload_named(mode));
    });
  }
}

// Attention to a part of the KV of the layers that have some: bits depend on no place, and with
// room for everything they are those of full attention.
TEST_P(Hybrids, SparsePoliciesSelectFromLayersWithKv) {
  const std::vector<Job> jobs{{random_tokens(200, 1), sampled(30, 1)},
                              {random_tokens(90, 2), sampled(30, 2)}};
  EngineOptions options = tiny_options(GetParam());
  const std::vector<RequestOutput> full = run_engine(options, jobs);
  options.sparse.policy = "full+quest";
  options.sparse.page_tokens = 16;
  options.sparse.sink_tokens = options.sparse.recent_tokens = 16;
  options.sparse.topk_tokens = 512;
  expect_all_alike(run_engine(options, jobs), full, "a budget for all", near_tie_nats(GetParam()));
  options.sparse.topk_tokens = 48;
  const std::vector<RequestOutput> sparse = run_engine(options, jobs);
  EXPECT_NE(sparse[0].token_ids, full[0].token_ids);
  options = testing::with_offload(options, KvOffload::kChunked);
  // Where a GPU computes chunks, rows that are chunks in one run stay so in the other: a page that
  // is chosen by less than they differ from steps would be another.
  const bool has_chunks = !testing::testing_cpu() && GetParam() == "qwen35-hybrid-chunks";
  options.prefill_chunk_tokens = has_chunks ? 64 : 48;
  expect_all_alike(run_engine(options, jobs), sparse, "offloaded", near_tie_nats(GetParam()));
}

// States are computed again from the first token on: nothing is cached.
TEST_P(Hybrids, PreemptionLosesNothing) {
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 5; ++i) {
    jobs.push_back({random_tokens(60, i), sampled(50, static_cast<int64_t>(i))});
  }
  EngineOptions options = tiny_options(GetParam());
  options.enable_prefix_caching = false;
  const std::vector<RequestOutput> expected = run_engine(options, jobs);
  const MemoryPlan plan = plan_memory(options);
  const size_t block_bytes = *options.kv.cache_bytes / static_cast<size_t>(plan.num_blocks);
  options.kv.cache_bytes = 20 * block_bytes;  // a request alone needs 7
  options.max_model_len = 128;
  LLM llm(options);
  expect_all_alike(run_jobs(llm, jobs), expected, "preempted", near_tie_nats(GetParam()));
  EXPECT_GT(llm.stats().num_preemptions, 0);
}

TEST_P(Hybrids, ALongPromptGoesInParts) {
  EngineOptions options = tiny_options(GetParam());
  const std::vector<Job> jobs{{random_tokens(490, 9), sampled(6, 1)},
                              {random_tokens(300, 10), sampled(6, 2)}};
  options.max_num_batched_tokens = 1024;
  const std::vector<RequestOutput> whole = run_engine(options, jobs);
  options.prefill_chunk_tokens = 100;
  expect_all_alike(run_engine(options, jobs), whole, "chunks", near_tie_nats(GetParam()));
}

// A request never reads the state of one before it.
TEST(Hybrid, TheHundredthRequestHasTheBitsOfTheFirst) {
  EngineOptions options = tiny_options(kModel);
  options.max_num_seqs = 3;
  LLM llm(options);
  const Job job{random_tokens(40, 1), sampled(10, 1)};
  const std::vector<RequestOutput> first = run_jobs(llm, {job});
  for (uint64_t i = 0; i < 30; ++i) {
    run_jobs(llm, {{random_tokens(10 + static_cast<int64_t>(i), i), sampled(5, 1)},
                   {random_tokens(3, i), sampled(7, 1)},
                   {random_tokens(33, i), sampled(2, 1)}});
  }
  expect_all_same(run_jobs(llm, {job}), first, "after 90 others");
}

// A pass is cancelled after each of its parts, and run again: it must not see what it wrote before.
TEST(Hybrid, ACancelledPassLeavesNoState) {
  EngineOptions options = tiny_options(kModel);
  options.prefill_chunk_tokens = 64;
  options.max_num_batched_tokens = 128;
  const Job job{random_tokens(150, 4), sampled(6, 1)};
  const std::vector<RequestOutput> expected = run_engine(options, {job});
  for (int num_parts = 0; num_parts < 8; ++num_parts) {
    LlmEngine engine(options, {.device = testing::make_test_device({.num_threads = 2})});
    const SequenceId id = engine.add_request(job.prompt, job.params);
    int num_heard = 0, num_given_up = 0;
    const PassWatch watch{.on_progress = [&](int64_t) { ++num_heard; },
                          .should_cancel =
                              [&] {
                                if (num_given_up == 2 || num_heard < num_parts) return false;
                                num_heard = 0;
                                return ++num_given_up > 0;
                              }};
    std::vector<RequestOutput> outputs;
    while (engine.has_unfinished()) {
      for (RequestOutput& output : engine.step(&watch)) outputs.push_back(std::move(output));
    }
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_EQ(outputs[0].request_id, id.value);
    EXPECT_GT(num_given_up, 0) << num_parts;
    expect_all_same(outputs, expected, "given up after " + std::to_string(num_parts));
  }
}

// A row that is computed again, because the masks of its token were late, steps the state once.
TEST(Hybrid, LateMasksChangeNoBit) {
  const EngineOptions options = tiny_options(kModel);
  std::vector<Job> jobs;
  for (uint64_t i = 0; i < 4; ++i) {
    jobs.push_back({random_tokens(20 + 9 * static_cast<int64_t>(i), i), sampled(24, 1)});
    jobs.back().params.ignore_eos = false;
    jobs.back().params.structured = std::make_shared<StructuredOutput>(
        StructuredOutput{.kind = StructureKind::kRegex, .text = "([a-z]{2}[0-9]){8}"});
  }
  const std::vector<RequestOutput> expected = run_engine(options, jobs);
  auto count = std::make_shared<std::atomic<int>>(0);
  LlmEngine::Parts parts{.device = testing::make_test_device({.num_threads = 2}),
                         .before_masks = [count] {
                           if (++*count % 5 != 0) return;
                           std::this_thread::sleep_for(std::chrono::milliseconds(6));
                         }};
  LlmEngine engine(options, std::move(parts));
  expect_all_alike(run_jobs(engine, jobs), expected, "late masks", near_tie_nats(kModel));
}

// ---- Memory and options -----------------------------------------------------------------------

TEST(Hybrid, WhatIsTakenIsWhatWasPlanned) {
  for (const std::string& model : testing::hybrids()) {
    LlmEngine engine(tiny_options(model), {.device = testing::make_test_device()});
    EXPECT_EQ(engine.device().allocated_bytes(MemoryKind::kDevice),
              engine.plan().memory.device_used_bytes());
  }
  // Two slots for each of 16 sequences, of three layers: five heads of 20 x 12 numbers in f32, and
  // three rows of 2 * 100 + 60 channels in bf16, in lines of 64 bytes.
  const size_t layer_bytes = (5 * 20 * 12 * 4 + 3 * 260 * 2 + 63) / 64 * 64;
  size_t found = 0;
  for (const MemoryPlanEntry& entry : plan_memory(tiny_options(kModel)).entries) {
    if (entry.name == "states of sequences") found = entry.bytes;
  }
  EXPECT_EQ(found, 2 * 16 * 3 * layer_bytes);
}

TEST(Hybrid, KvIsOfFullLayersAlone) {
  // One of four layers attends; K and V of two heads of 24 channels, padded to 32.
  EXPECT_EQ(summarize_model(path_of(kModel).string()).kv_bytes_per_token, 2u * 2 * 32 * 2);
  EXPECT_EQ(summarize_model(path_of(kModel).string()).num_layers, 4);
}

TEST(Hybrid, WithoutRoomForASnapshotPrefixCachingIsOff) {
  EngineOptions options = tiny_options(kModel);
  const auto has_note = [&](const std::string& begin) {
    for (const std::string& note : plan_memory(options).notes) {
      if (note.starts_with(begin)) return true;
    }
    return false;
  };
  EXPECT_FALSE(has_note("prefix caching is off"));
  EXPECT_FALSE(has_note("max_num_seqs is"));
  options.state_cache.max_bytes = 100;
  EXPECT_TRUE(has_note("prefix caching is off: a snapshot of the recurrent states takes"));
  LLM llm(options);
  const std::vector<Job> jobs(2, {random_tokens(70, 3), sampled(20, 5)});
  for (int i = 0; i < 2; ++i) {
    for (const RequestOutput& output : run_jobs(llm, jobs)) EXPECT_EQ(output.num_cached_tokens, 0);
  }
}

TEST(Hybrid, WhatIsAskedForAndMissingIsRefused) {
  EngineOptions with_events = tiny_options(kModel);
  with_events.kv_events.endpoint = "tcp://*:5557";
  EXPECT_TRUE(contains(expect_error(ErrorCode::kUnsupported, [&] { plan_memory(with_events); }),
                       "kv_events is"));
  const auto useless = [](const std::string& model, bool caches) {
    EngineOptions options = tiny_options(model);
    options.enable_prefix_caching = caches;
    options.state_cache.max_bytes = 1 << 20;
    return expect_error(ErrorCode::kInvalidArgument, [&] { plan_memory(options); });
  };
  EXPECT_TRUE(contains(useless("qwen3-group2-tied", true), "has no recurrent states"));
  EXPECT_TRUE(contains(useless(kModel, false), "prefix caching is off"));
}

// ---- Files ------------------------------------------------------------------------------------

// A tensor of a file, with its bytes.
struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

Tensors read_tensors(const std::string& model) {
  const auto path = path_of(model) / "model.safetensors";
  const std::string file = read_file(path);
  Tensors tensors;
  for (const auto& entry :
       parse_safetensors_header(std::as_bytes(std::span(file)), path.string()).tensors) {
    tensors[entry.name] = {entry.dtype.value(), entry.shape,
                           file.substr(entry.begin, entry.end - entry.begin)};
  }
  return tensors;
}

// A directory with these tensors and this configuration.
class ModelCopy {
 public:
  explicit ModelCopy(const std::string& model)
      : config(nlohmann::json::parse(read_file(path_of(model) / "config.json"))),
        tensors(read_tensors(model)),
        options_(tiny_options(model)) {}

  EngineOptions write() {
    std::vector<SafetensorsInput> inputs;
    for (const auto& [name, tensor] : tensors) {
      inputs.push_back({.name = name,
                        .dtype = tensor.dtype,
                        .shape = tensor.shape,
                        .bytes = std::as_bytes(std::span(tensor.bytes))});
    }
    write_safetensors(dir_.path() / "model.safetensors", inputs);
    write_file(dir_.path() / "config.json", config.dump());
    options_.model = dir_.path().string();
    return options_;
  }
  std::string error() {
    return expect_error(ErrorCode::kModel, [this] { LLM llm(write()); });
  }

  nlohmann::json config;
  Tensors tensors;

 private:
  TempDir dir_;
  EngineOptions options_;
};

// A GPU's kernels keep a block of columns of a matrix in shared memory.
TEST(HybridFiles, KeysThatAreTooWideForAGpuAreRefused) {
  const auto plan_for_gpu = [](const EngineOptions& options) {
    plan_memory(options, {.gpu_bytes = size_t{80} << 30, .host_bytes = size_t{80} << 30});
  };
  plan_for_gpu(tiny_options(kModel));
  ModelCopy copy(kModel);
  copy.config["text_config"]["linear_key_head_dim"] = 136;
  const EngineOptions options = copy.write();
  const std::string error = expect_error(ErrorCode::kUnsupported, [&] { plan_for_gpu(options); });
  EXPECT_TRUE(contains(error, "linear_key_head_dim is 136")) << error;
  EXPECT_TRUE(contains(error, "--device cpu")) << error;
}

std::vector<float> logits_of(const EngineOptions& options) {
  return LLM(options).trace(random_tokens(60, 1), {}).logits.data;
}

// As a model of its own: other names of tensors, and a configuration that is not nested.
TEST(HybridFiles, TheTextPartAloneGivesTheSameLogits) {
  ModelCopy copy(kModel);
  Tensors flat;
  for (const auto& [name, tensor] : copy.tensors) {
    constexpr const char* kNested = "model.language_model.";
    if (name.starts_with("model.visual.")) continue;
    const bool is_nested = name.starts_with(kNested);
    flat[is_nested ? "model." + name.substr(std::strlen(kNested)) : name] = tensor;
  }
  ASSERT_LT(flat.size(), copy.tensors.size());
  copy.tensors = flat;
  copy.config = nlohmann::json(copy.config["text_config"]);
  copy.config["architectures"] = {"Qwen3_5ForCausalLM"};
  EXPECT_EQ(logits_of(copy.write()), logits_of(tiny_options(kModel)));
  // Without a list of types every fourth layer attends, and the factor may lie beside.
  copy.config.erase("layer_types");
  copy.config.erase("architectures");
  copy.config["rope_parameters"].erase("partial_rotary_factor");
  copy.config["partial_rotary_factor"] = 0.25;
  EXPECT_EQ(logits_of(copy.write()), logits_of(tiny_options(kModel)));
}

TEST(HybridFiles, DraftLayersAndVisionAreSkippedWithANote) {
  ModelCopy copy(kModel);
  copy.tensors["mtp.fc.weight"] = copy.tensors.at("lm_head.weight");
  const EngineOptions options = copy.write();
  EXPECT_EQ(logits_of(options), logits_of(tiny_options(kModel)));
  EXPECT_TRUE(contains(check_model(options).weights, "the text part runs alone"));
  copy.tensors["model.language_model.layers.0.linear_attn.extra"] =
      copy.tensors.at("lm_head.weight");
  EXPECT_TRUE(contains(copy.error(), "layers.0.linear_attn.extra"));
}

TEST(HybridFiles, MissingAndMisshapenTensorsAreNamed) {
  ModelCopy copy("qwen3next-hybrid-experts6");
  const Tensors whole = copy.tensors;
  for (const char* name : {"linear_attn.in_proj_qkvz.weight", "linear_attn.in_proj_ba.weight",
                           "linear_attn.conv1d.weight", "linear_attn.A_log"}) {
    const std::string full = std::string("model.layers.0.") + name;
    copy.tensors = whole;
    ASSERT_EQ(copy.tensors.erase(full), 1u);
    EXPECT_TRUE(contains(copy.error(), "tensor \"" + full + "\" is missing"));
    copy.tensors[full] = whole.at("model.norm.weight");
    EXPECT_TRUE(contains(copy.error(), "tensor \"" + full + "\" has shape"));
  }
}

}  // namespace
}  // namespace sluice
