// Checks across options of benchmarks, one overload for each command.
#include <array>
#include <initializer_list>

#include <fmt/format.h>

#include "cli/options/check_parts.h"
#include "cli/options/option_checks.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// Two of the largest blocks that bench/transfer_kv.cc measures: 16 MiB over all its layers.
constexpr size_t kMinTransferBytes = size_t{32} << 20;

// 32 layers of 2 KiB: less would measure the calls of the system alone.
constexpr size_t kMinStoredBlockBytes = size_t{64} << 10;

// --kv-offload replaces the list of modes.
void take_mode(BenchKvCommand* bench, const Given& given) {
  refuse_both(given, "--kv-offload", "--modes");
  if (!given.contains("--kv-offload")) return;
  if (bench->engine.kv.offload == KvOffload::kAuto) {
    fail(ErrorCode::kInvalidArgument, "--kv-offload: 'auto' is not one of off, chunked, layerwise");
  }
  bench->modes = {bench->engine.kv.offload};
}

// One request at a time, whose modes are a list.
void check_kv_work(BenchKvCommand* bench, const Given& given) {
  require_model(bench->engine.model);
  refuse_unused(bench->engine, given, {Unused::kStalls, Unused::kSequences});
  refuse_options_of_parts_off(bench->engine, given);
  take_mode(bench, given);
}

// Lengths that bench throughput and bench serve draw.
void check_range(int32_t least_tokens, int32_t most_tokens) {
  if (least_tokens <= most_tokens) return;
  fail(ErrorCode::kInvalidArgument, "--least-tokens: {} is more than --most-tokens {}; lower it",
       least_tokens, most_tokens);
}

// An option of bench serve that not all scenarios have. One that has no effect is refused rather
// than ignored: the measurement may take long, and would be of something else.
struct ScenarioOption {
  const char* name;
  std::array<bool, kServeScenarioNames.size()> used_by;  // in the order of ServeScenario

  bool is_used_by(ServeScenario scenario) const { return used_by[static_cast<size_t>(scenario)]; }
};
constexpr ScenarioOption kScenarioOptions[] = {
    // streams, beside, shared, cancel, answer, mixed
    {"--num-requests", {true, false, true, false, false, true}},
    {"--least-tokens", {true, false, false, false, false, true}},
    {"--most-tokens", {true, false, false, false, false, true}},
    {"--prompt-tokens", {false, true, true, true, false, false}},
    {"--output-tokens", {false, true, false, false, true, false}},
    {"--concurrency", {false, false, false, false, false, true}},
    {"--repeats", {true, true, true, true, true, false}},
};
constexpr const char* kServerHasIt =
    "a running server has its own; leave it out, or --url and --uds";
// Ten thousand requests of the lengths of streams would take hours on a CPU.
constexpr int32_t kMixedLeastTokens = 4;
constexpr int32_t kMixedMostTokens = 64;

}  // namespace

void check(BenchStoreCommand* bench, const Given&) {
  require_directory(bench->dir);
  if (bench->block_bytes >= kMinStoredBlockBytes) return;
  fail(ErrorCode::kInvalidArgument, "--block-bytes: {} is less than 64K; raise it",
       bench->block_bytes);
}

// One prompt alone is read before it decodes.
void check(BenchDecodeCommand* bench, const Given& given) {
  check_engine(bench->engine, given, {Unused::kSequences, Unused::kAudit});
  if (bench->batch == 1) refuse_unused(bench->engine, given, {Unused::kStalls});
}

void check(BenchPrefillCommand* bench, const Given& given) {
  check_engine(
      bench->engine, given,
      {Unused::kDecode, Unused::kDrafts, Unused::kStalls, Unused::kSequences, Unused::kAudit});
}

// A file of lengths replaces the three options that describe random ones.
void check(BenchThroughputCommand* bench, const Given& given) {
  check_engine(bench->engine, given, {Unused::kAudit});
  if (!bench->requests.empty()) {
    refuse_given(given, {"--num-requests", "--least-tokens", "--most-tokens"},
                 "--requests says how many there are and how long; leave one of them out");
  }
  check_range(bench->least_tokens, bench->most_tokens);
}

// Options of scenarios that do not use them are refused, and so are engine options beside a running
// server, but for the promises that its report compares with.
void check(BenchServeCommand* bench, const Given& given) {
  if (bench->is_running_server()) {
    refuse_both(given, "--url", "--uds");
    if (!bench->engine.model.empty()) {
      fail(ErrorCode::kInvalidArgument, "'{}' is given as the model, but {}", bench->engine.model,
           kServerHasIt);
    }
    refuse_given(given, {"--http-threads"}, kServerHasIt);
    refuse_engine_options(given, {"--max-stall-ms", "--kv-offload"}, kServerHasIt);
  } else {
    check_engine(bench->engine, given, {Unused::kAudit});
  }
  for (const ScenarioOption& option : kScenarioOptions) {
    if (option.is_used_by(bench->scenario)) continue;
    refuse_given(given, {option.name},
                 fmt::format("the scenario {} does not use it; leave it out",
                             kServeScenarioNames[static_cast<size_t>(bench->scenario)]));
  }
  if (bench->scenario == ServeScenario::kMixed) {
    if (!given.contains("--least-tokens")) bench->least_tokens = kMixedLeastTokens;
    if (!given.contains("--most-tokens")) bench->most_tokens = kMixedMostTokens;
  }
  check_range(bench->least_tokens, bench->most_tokens);
}

// --bytes must hold the blocks of all measurements.
void check(BenchTransferCommand* bench, const Given&) {
  if (bench->num_bytes.value_or(kMinTransferBytes) >= kMinTransferBytes) return;
  fail(ErrorCode::kInvalidArgument, "--bytes: {} is less than 32M; raise it, or leave it out",
       *bench->num_bytes);
}

// Sizes are accepted for every mode, since rows differ. An option of the engine and the list that
// varies it exclude each other.
void check(BenchOffloadCommand* bench, const Given& given) {
  check_kv_work(bench, given);
  refuse_unused(bench->engine, given, {Unused::kAudit});
  refuse_both(given, "--chunks", "--prefill-chunk-tokens");
  refuse_both(given, "--slots", "--num-kv-slots");
  refuse_both(given, "--slot-blocks", "--kv-slot-blocks");
  refuse_both(given, "--block-sizes", "--block-size");
  refuse_both(given, "--device-bytes", "--kv-device-bytes");
}

// A --sparse-policy replaces the list of policies.
void check(BenchSparseCommand* bench, const Given& given) {
  check_kv_work(bench, given);
  refuse_both(given, "--budgets", "--sparse-topk-tokens");
  if (given.contains("--sparse-policy")) {
    refuse_given(given, {"--policies"}, "--sparse-policy names a policy; leave one of them out");
    bench->policies = {bench->engine.sparse.policy};
  }
  check_policies(bench->policies, bench->engine.sparse, given);
  const auto topk = bench->engine.sparse.topk_tokens;
  if (!bench->budgets.empty() && topk && !given.contains("--sparse-topk-tokens")) {
    fail(ErrorCode::kInvalidArgument,
         "--budgets is given, but the short form of --sparse-policy sets --sparse-topk-tokens to "
         "{}; leave one of them out",
         *topk);
  }
  for (const int32_t budget : bench->budgets) {
    SparseOptions with_budget = bench->engine.sparse;
    with_budget.topk_tokens = budget;
    check_policies(bench->policies, with_budget, {{"--sparse-topk-tokens", "--budgets"}});
  }
  if (bench->file.empty() || bench->engine.load_format != LoadFormat::kDummy) return;
  fail(ErrorCode::kInvalidArgument,
       "--file: with random weights a text is no more than random ids; add --load-format auto, or "
       "leave it out");
}

// Budgets: the list, else --sparse-topk-tokens, else a few powers of two.
void check(BenchOverlapCommand* bench, const Given& given) {
  check_engine(
      bench->engine, given,
      {Unused::kDrafts, Unused::kStalls, Unused::kSequences, Unused::kAudit, Unused::kSeed});
  refuse_both(given, "--budgets", "--sparse-topk-tokens");
  const auto topk = bench->engine.sparse.topk_tokens;
  if (bench->budgets.empty()) {
    bench->budgets =
        topk ? std::vector<int32_t>{*topk} : std::vector<int32_t>{256, 512, 1024, 2048};
  }
  if (bench->record.empty() || bench->lengths.size() * bench->budgets.size() == 1) return;
  fail(ErrorCode::kInvalidArgument,
       "--record: a file has the lists of one length and one budget; give one of --lengths and one "
       "of --budgets");
}

// Drafts of n-grams need no policy for decode; a policy is then an error of the engine.
void check(BenchSpeculativeCommand* bench, const Given& given) {
  check_engine(bench->engine, given,
               {Unused::kStalls, Unused::kSequences, Unused::kAudit, Unused::kNoPrefixes});
  refuse_given(given, {"--num-speculative-tokens", "--speculative-config"},
               "the rows have the lengths of --counts; use it and --speculative-method");
  const SpeculativeMethod method = bench->engine.speculative.method;
  if (method == SpeculativeMethod::kNone) {
    fail(ErrorCode::kInvalidArgument, "--speculative-method: 'none' drafts nothing; name another");
  }
  const bool is_sparse = given.contains("--sparse-policy");
  if (method == SpeculativeMethod::kNgram && !is_sparse) bench->engine.sparse.policy = "full";
  if (bench->engine.load_format != LoadFormat::kDummy) {
    refuse_given(given, {"--accept"}, "acceptance is that of the model's weights; leave it out");
    refuse_given(given, {"--replay"}, "the model's weights choose pages; leave it out");
    return;
  }
  refuse_given(given, {"--file", "--temperature"},
               "with random weights a text is no more than random ids; add --load-format auto");
}

// Activations are those of full attention, so no policy would have an effect.
void check(BenchRecallCommand* bench, const Given& given) {
  check_engine(bench->engine, given, {Unused::kDrafts, Unused::kStalls, Unused::kAudit});
  refuse_given(given, {"--sparse-policy"},
               "recall measures what full attention attends to; leave it out");
  if (bench->masks.empty()) {
    refuse_given(given, {"--masks-layer", "--masks-head", "--policies"},
                 "only --masks FILE draws them; add it");
  } else {
    check_policies(bench->policies, bench->engine.sparse, given);
  }
  if (!bench->length || bench->beyond < *bench->length) return;
  fail(ErrorCode::kInvalidArgument,
       "--beyond: {} leaves no row of a text of --length {}; lower it, or raise --length",
       bench->beyond, *bench->length);
}

void check(BenchTokenizerCommand* bench, const Given&) { require_model(bench->engine.model); }
// What takes memory counts, since the peak of memory is measured: drafts and policies too.
void check(BenchLoadCommand* bench, const Given& given) {
  check_engine(bench->engine, given, {Unused::kStalls, Unused::kAudit});
}

}  // namespace sluice::cli
