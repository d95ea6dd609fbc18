// Declares the options of `sluice bench ...`; cli/options/option_checks.h checks them.
//
// Used by subcommand.h. Thread rule: main thread, before other threads start.
#pragma once

#include "cli/options/option_set.h"
#include "cli/options/options.h"

namespace sluice::cli {

// Each sets the defaults of `bench`, which outlives the set, and declares its options.
void declare(OptionSet& set, BenchDecodeCommand* bench);
void declare(OptionSet& set, BenchPrefillCommand* bench);
void declare(OptionSet& set, BenchThroughputCommand* bench);
void declare(OptionSet& set, BenchServeCommand* bench);
void declare(OptionSet& set, BenchTransferCommand* bench);
void declare(OptionSet& set, BenchStoreCommand* bench);
void declare(OptionSet& set, BenchOffloadCommand* bench);
void declare(OptionSet& set, BenchSparseCommand* bench);
void declare(OptionSet& set, BenchOverlapCommand* bench);
void declare(OptionSet& set, BenchSpeculativeCommand* bench);
void declare(OptionSet& set, BenchRecallCommand* bench);
void declare(OptionSet& set, BenchTokenizerCommand* bench);
void declare(OptionSet& set, BenchLoadCommand* bench);

}  // namespace sluice::cli
