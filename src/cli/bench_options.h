// Options of `sluice bench ...`: declared and checked.
//
// Used by options.cc, which knows all commands. Thread rule: main thread, before anything starts.
#pragma once

#include "cli/option_set.h"
#include "cli/options.h"

namespace sluice::cli {

void declare_bench_decode(OptionSet& set, BenchDecodeCommand* bench);
void declare_bench_prefill(OptionSet& set, BenchPrefillCommand* bench);
void declare_bench_throughput(OptionSet& set, BenchThroughputCommand* bench);
void declare_bench_transfer(OptionSet& set, BenchTransferCommand* bench);
void declare_bench_offload(OptionSet& set, BenchOffloadCommand* bench);
void declare_bench_sparse(OptionSet& set, BenchSparseCommand* bench);
void declare_bench_overlap(OptionSet& set, BenchOverlapCommand* bench);
void declare_bench_tokenizer(OptionSet& set, BenchTokenizerCommand* bench);
void declare_bench_load(OptionSet& set, BenchLoadCommand* bench);

// Errors: kInvalidArgument naming the option, its value and what to write instead.
void check_bench_throughput(const BenchThroughputCommand& bench);
void check_bench_transfer(const BenchTransferCommand& bench);
// Also settle which modes, policies and budgets are measured.
void check_bench_offload(BenchOffloadCommand* bench);
void settle_bench_sparse(BenchSparseCommand* bench);
void settle_bench_overlap(BenchOverlapCommand* bench);

}  // namespace sluice::cli
