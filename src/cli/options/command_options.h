// Declares the options of all subcommands except those of bench (cli/options/bench_options.h).
//
// Used by subcommand.h. Thread rule: main thread, before other threads start.
#pragma once

#include "cli/options/option_set.h"
#include "cli/options/options.h"

namespace sluice::cli {

// Each declares options that write into the command, which outlives the set.
void declare(OptionSet& set, RunCommand* run);
void declare(OptionSet& set, TokenizeCommand* tokenize);
void declare(OptionSet& set, ScoreCommand* score);
void declare(OptionSet& set, InspectCommand* inspect);
void declare(OptionSet& set, ModelsCommand* models);
void declare(OptionSet& set, CompletionCommand* completion);
inline void declare(OptionSet&, ManCommand*) {}
void declare(OptionSet& set, ServeCommand* serve);
void declare(OptionSet& set, TraceCommand* trace);
void declare(OptionSet& set, DoctorCommand* doctor);
void declare(OptionSet& set, StoreListCommand* list);
void declare(OptionSet& set, StoreVerifyCommand* verify);
void declare(OptionSet& set, StorePruneCommand* prune);

}  // namespace sluice::cli
