// The commands: each takes its options and returns the exit code of the process.
//
// Called by main.cc. Errors are thrown as sluice::Error. Thread rule: main thread.
#pragma once

#include "cli/exit_codes.h"
#include "cli/options/options.h"

namespace sluice::cli {

// Each returns kExitOk; inspect returns kExitModel or kExitDoesNotFit for a model that cannot run.
// After Ctrl-C run and score print what they have and return kExitInterrupted; trace writes no
// file.
int run(const RunCommand& command);
int tokenize(const TokenizeCommand& command);
int score(const ScoreCommand& command);
int inspect(const InspectCommand& command);
int models(const ModelsCommand& command);
// Serves until SIGINT or SIGTERM, then returns kExitOk; kExitFailure if the engine failed.
int serve(const ServeCommand& command);
int trace(const TraceCommand& command);
// Also writes the machine profile, if a GPU is there (engine/plan/machine_profile.h).
int doctor(const DoctorCommand& command);

int completion(const CompletionCommand& command);
int man(const ManCommand& command);

// Stored KV. store_verify returns kExitFailure if a block is damaged.
int store_list(const StoreListCommand& command);
int store_verify(const StoreVerifyCommand& command);
int store_prune(const StorePruneCommand& command);

// Results go through write_bench (cli/bench/measure.h); Ctrl-C ends these without a result.
// bench_offload returns kExitDoesNotFit if no row fits.
int bench_decode(const BenchDecodeCommand& command);
int bench_prefill(const BenchPrefillCommand& command);
int bench_throughput(const BenchThroughputCommand& command);
int bench_serve(const BenchServeCommand& command);
int bench_offload(const BenchOffloadCommand& command);

}  // namespace sluice::cli
