// Checks of options that contradict or require each other.
//
// Used by subcommand.h when all options are read. The rule: an option that is given, as a word or
// as a variable, and would have no effect is an error. Example: `--kv-host-bytes 64G` with
// `--kv-offload off` looks like offload and is none; with `auto`, the default, all sizes may
// matter, and the plan warns of those that did not. tests/cli/option_uses_test.cc looks at every
// command and every option. Exceptions: options that depend on the machine (--enforce-eager,
// --gpu-lock, --kv-copy-bytes without a GPU), so that one command line serves every machine;
// sampling options beside --temperature 0; and sizes in `bench offload`, which measures several
// configurations. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/invocation.h"
#include "cli/options/options.h"

namespace sluice::cli {

// Errors of all: kInvalidArgument naming the option, its value and a remedy. Some also set fields
// that follow from the options given, such as sorted lists.
void check(RunCommand* run, const Given& given);
void check(TokenizeCommand* tokenize, const Given& given);
void check(ScoreCommand* score, const Given& given);
inline void check(ModelsCommand*, const Given&) {}
void check(CompletionCommand* completion, const Given& given);
inline void check(ManCommand*, const Given&) {}
void check(InspectCommand* inspect, const Given& given);
void check(ServeCommand* serve, const Given& given);
void check(TraceCommand* trace, const Given& given);
inline void check(DoctorCommand*, const Given&) {}
void check(StoreListCommand* list, const Given& given);
void check(StoreVerifyCommand* verify, const Given& given);
void check(StorePruneCommand* prune, const Given& given);
void check(BenchDecodeCommand* bench, const Given& given);
void check(BenchPrefillCommand* bench, const Given& given);
void check(BenchThroughputCommand* bench, const Given& given);
void check(BenchServeCommand* bench, const Given& given);
void check(BenchOffloadCommand* bench, const Given& given);
// What every benchmark that compares ways to keep KV checks.
void check_kv_work(BenchKvCommand* bench, const Given& given);

// Adds a warning if all of several prompts are single words, as in `sluice run -m DIR Tell me a
// story`: the quotes are probably missing.
void warn(const RunCommand& run, std::vector<std::string>* warnings);

}  // namespace sluice::cli
