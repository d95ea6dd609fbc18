// The jobs, and the options that make them use every kind of wait.
#include "engine/offload/offload_waits_run.h"

#include <numeric>
#include <utility>

#include "support/offload_of.h"
#include "support/scoped_policy.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {
namespace {

constexpr const char* kModel = "qwen3-group2-tied";
constexpr const char* kExpertModel = "qwen3moe-experts8-pair";  // in three of four layers

// The sequences run one after the other. The first takes three chunks. The short ones end when
// their tail is flushed, so that only the wait protects the tail from its next use. One ends by a
// stop token, when loads for its next step have already been enqueued.
std::vector<Job> make_jobs() {
  std::vector<Job> jobs{
      {random_tokens(150, 1), sampled(20, 1)}, {random_tokens(8, 2), sampled(25, 2)},
      {random_tokens(8, 3), sampled(25, 3)},   {random_tokens(100, 4), sampled(1, 4)},
      {random_tokens(70, 5), sampled(1, 5)},   {random_tokens(70, 6), sampled(40, 6)},
      {random_tokens(70, 7), sampled(1, 7)}};
  std::vector<int32_t>& stops = jobs[5].params.stop_token_ids;
  stops.resize(40);
  std::iota(stops.begin(), stops.end(), 0);
  return jobs;
}

// Two prompts of three chunks each, whose history the second and third chunk score and read.
std::vector<Job> make_scored_jobs() {
  return {{random_tokens(400, 1), sampled(2, 1)}, {random_tokens(300, 2), sampled(2, 2)}};
}

// Of the first two the tails leave in decode; the last one stops early, inside a draft or when
// loads for its next step have been enqueued.
std::vector<Job> make_few_jobs() {
  std::vector<Job> jobs{{random_tokens(100, 1), sampled(20, 1)},
                        {random_tokens(8, 2), sampled(25, 2)},
                        {random_tokens(70, 6), sampled(40, 6)}};
  std::vector<int32_t>& stops = jobs[2].params.stop_token_ids;
  stops.resize(40);
  std::iota(stops.begin(), stops.end(), 0);
  return jobs;
}

// Chunks, decode steps of one and of two rows, and a pass that is not the last before an end.
std::vector<Job> make_expert_jobs() {
  return {{random_tokens(100, 1), sampled(6, 1)}, {random_tokens(20, 2), sampled(4, 2)}};
}

bool is_short(const std::string& mode) { return mode == "hot" || mode == "speculative"; }

bool gathers(const std::string& mode) {
  return mode == "gather" || mode == "replay" || is_short(mode);
}

EngineOptions base_options(const std::string& mode) {
  EngineOptions options = testing::tiny_options(kModel);
  options.max_num_seqs = mode == "replay" ? 2 : 1;
  options.enforce_eager = mode != "replay";
  if (!gathers(mode)) return options;
  if (mode == "speculative") {
    options.speculative.method = SpeculativeMethod::kSparse;
    options.speculative.num_tokens = 3;
  }
  options.sparse.policy = "full+quest";
  options.sparse.page_tokens = 16;
  options.sparse.topk_tokens = 48;  // three pages, of which the host may have all
  options.sparse.sink_tokens = 0;
  options.sparse.recent_tokens = 0;
  return options;
}

EngineOptions with_experts_on_host() {
  EngineOptions options = testing::tiny_options(kExpertModel);
  options.kv.offload = KvOffload::kOff;
  options.weights_offload = WeightsOffload::kExperts;
  options.experts_device_bytes = 0;
  options.enforce_eager = true;
  options.prefill_chunk_tokens = 64;
  return options;
}

EngineOptions offloaded(const std::string& mode) {
  if (mode == "experts") return with_experts_on_host();
  EngineOptions options = base_options(mode);
  options.kv.offload = mode == "layerwise" ? KvOffload::kLayerwise : KvOffload::kChunked;
  options.kv.num_slots = 2;
  options.kv.slot_blocks = gathers(mode) ? 1 : 2;  // so that a layer gathers more than slots
  options.kv.host_bytes = 1 << 20;
  options.enable_prefix_caching = false;
  if (mode == "hot") options.kv.device_bytes = 64 << 10;  // some lists, not all blocks
  if (mode == "scored") {
    options.kv.block_size = kMaskTileTokens;
    options.kv.slot_blocks = 1;
    options.kv.host_bytes = 4 << 20;
  }
  if (options.kv.offload == KvOffload::kChunked) {
    options.prefill_chunk_tokens = mode == "scored" ? kMaskTileTokens : 64;
    options.max_num_batched_tokens = options.prefill_chunk_tokens;
  }
  return options;
}

// Null: the policies that the options name.
std::unique_ptr<PolicyPair> policies_of(const std::string& mode) {
  return mode == "scored" ? make_scoped({.window_rows = kMaskTileTokens}) : nullptr;
}

// Decodes across two block borders. A second request is cancelled after the first of its three
// chunks and the decode step that follows, when loads for the second chunk are on the way to the
// slots that the next decode step uses.
std::vector<RequestOutput> run_visited(LlmEngine& engine) {
  std::vector<RequestOutput> finished;
  const auto steps = [&](int count) { run_steps(engine, count, finished); };
  engine.add_request(random_tokens(60, 1), sampled(40, 1));
  steps(12);
  const SequenceId visitor = engine.add_request(random_tokens(150, 2), sampled(1, 2));
  steps(2);
  engine.cancel_request(visitor);
  steps(1000);
  return finished;
}

std::vector<RequestOutput> run_jobs_of(const std::string& mode, LlmEngine& engine) {
  if (mode == "replay") return run_visited(engine);
  if (mode == "experts") return run_jobs(engine, make_expert_jobs());
  if (is_short(mode)) return run_jobs(engine, make_few_jobs());
  return run_jobs(engine, mode == "scored" ? make_scored_jobs() : make_jobs());
}

}  // namespace

WaitsRun run_without(const std::string& mode, SkippedWait skipped, std::unique_ptr<Device> device) {
  const auto adjust_plan = [&](EnginePlan& plan) {
    if (mode == "replay") forced_graphs(offloaded(mode))(plan);
    plan.offloaded.sizes.skipped_wait = skipped;
    plan.experts.skipped_wait = skipped;
  };
  LlmEngine engine(
      offloaded(mode),
      {.device = std::move(device), .policies = policies_of(mode), .adjust_plan = adjust_plan});
  WaitsRun run{.outputs = run_jobs_of(mode, engine)};
  for (size_t kind = 0; kind < kNumWaitKinds; ++kind) {
    const auto of_kind = static_cast<WaitKind>(kind);
    run.num_waits[kind] = mode == "experts" ? engine.host_experts()->ring().num_waits(of_kind)
                                            : testing::offload_of(engine).num_waits(of_kind);
  }
  return run;
}

std::vector<RequestOutput> run_resident(const std::string& mode) {
  EngineOptions options =
      offloaded(mode);  // the same options, so that passes have the same heights on a GPU
  options.kv.offload = KvOffload::kOff;
  options.kv.device_bytes.reset();
  options.weights_offload = WeightsOffload::kOff;
  options.experts_device_bytes.reset();
  LlmEngine engine(options, {.device = make_test_device(), .policies = policies_of(mode)});
  return run_jobs_of(mode, engine);
}

}  // namespace sluice::testing
