// The commands of sluice-lab: each takes its options and returns the exit code of the process.
//
// Called by main.cc. Errors are thrown as sluice::Error. Results go through write_bench
// (cli/bench/measure.h); Ctrl-C ends these without a result. Thread rule: main thread.
#pragma once

#include "lab/options.h"

namespace sluice::lab {

int bench_transfer(const BenchTransferCommand& command);
// Removes the files that it makes.
int bench_store(const BenchStoreCommand& command);
// Returns kExitDoesNotFit if no row fits.
int bench_sparse(const BenchSparseCommand& command);
int bench_overlap(const BenchOverlapCommand& command);
int bench_speculative(const BenchSpeculativeCommand& command);
int bench_recall(const BenchRecallCommand& command);
int bench_tokenizer(const BenchTokenizerCommand& command);
int bench_load(const BenchLoadCommand& command);
int bench_structured(const BenchStructuredCommand& command);
int bench_turns(const BenchTurnsCommand& command);

}  // namespace sluice::lab
