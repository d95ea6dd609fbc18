// Checks across options, one overload for each command.
#include <vector>

#include "cli/options/check_parts.h"
#include "cli/options/engine_uses.h"
#include "cli/options/option_checks.h"
#include "core/error.h"
#include "lab/options.h"

namespace sluice::lab {

using namespace cli;  // parts of checks

namespace {

// Two of the largest blocks that transfer_kv.cc measures: 16 MiB over all its layers.
constexpr size_t kMinTransferBytes = size_t{32} << 20;

// 32 layers of 2 KiB: less would measure the calls of the system alone.
constexpr size_t kMinStoredBlockBytes = size_t{64} << 10;

}  // namespace

void check(BenchStoreCommand* bench, const Given&) {
  require_directory(bench->dir);
  if (bench->block_bytes >= kMinStoredBlockBytes) return;
  fail(ErrorCode::kInvalidArgument, "--block-bytes: {} is less than 64K; raise it",
       bench->block_bytes);
}

// --bytes must hold the blocks of all measurements.
void check(BenchTransferCommand* bench, const Given&) {
  if (bench->num_bytes.value_or(kMinTransferBytes) >= kMinTransferBytes) return;
  fail(ErrorCode::kInvalidArgument, "--bytes: {} is less than 32M; raise it, or leave it out",
       *bench->num_bytes);
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

void check(BenchStructuredCommand* bench, const Given& given) {
  check_engine(bench->engine, given, {Unused::kSequences, Unused::kNoPrefixes});
}

// Without prefix cache the second turn is computed whole, which is a comparison.
void check(BenchTurnsCommand* bench, const Given& given) {
  check_engine(bench->engine, given, {Unused::kStalls, Unused::kAudit, Unused::kSeed});
}

}  // namespace sluice::lab
