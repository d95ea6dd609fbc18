// Checks across options of benchmarks, one overload for each command.
#include <initializer_list>

#include <fmt/format.h>

#include "cli/options/check_parts.h"
#include "cli/options/option_checks.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// --kv-offload replaces the list of modes.
void take_mode(BenchKvCommand* bench, const Given& given) {
  refuse_both(given, "--kv-offload", "--modes");
  if (!given.contains("--kv-offload")) return;
  if (bench->engine.kv.offload == KvOffload::kAuto) {
    fail(ErrorCode::kInvalidArgument, "--kv-offload: 'auto' is not one of off, chunked, layerwise");
  }
  bench->modes = {bench->engine.kv.offload};
}

// Lengths that bench throughput and bench serve draw.
void check_range(int32_t least_tokens, int32_t most_tokens) {
  if (least_tokens <= most_tokens) return;
  fail(ErrorCode::kInvalidArgument, "--least-tokens: {} is more than --most-tokens {}; lower it",
       least_tokens, most_tokens);
}

constexpr const char* kServerHasIt =
    "a running server has its own; leave it out, or --url and --uds";

}  // namespace

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

// Engine options are refused beside a running server.
void check(BenchServeCommand* bench, const Given& given) {
  if (bench->is_running_server()) {
    refuse_both(given, "--url", "--uds");
    if (!bench->engine.model.empty()) {
      fail(ErrorCode::kInvalidArgument, "'{}' is given as the model, but {}", bench->engine.model,
           kServerHasIt);
    }
    refuse_given(given, {"--http-threads"}, kServerHasIt);
    refuse_engine_options(given, kServerHasIt);
  } else {
    check_engine(bench->engine, given, {Unused::kAudit});
  }
  check_range(bench->least_tokens, bench->most_tokens);
}

// One request at a time, whose modes are a list.
void check_kv_work(BenchKvCommand* bench, const Given& given) {
  require_model(bench->engine.model);
  refuse_unused(bench->engine, given, {Unused::kStalls, Unused::kSequences});
  refuse_options_of_parts_off(bench->engine, given);
  take_mode(bench, given);
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

}  // namespace sluice::cli
