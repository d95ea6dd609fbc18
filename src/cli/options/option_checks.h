// What options must not be together, or without each other.
//
// Used by subcommand.h after the words are read. The rule: an option that is given and would have
// no effect is an error, whether it was given as a word or as a variable, as the engine has it for
// the options of sparse policies: `--kv-host-bytes 64G` with `--kv-offload off` looks like offload
// and is none; with `auto`, the default, all sizes may count. Left out of the rule are what depends
// on the machine (--enforce-eager, --gpu-lock, --kv-copy-bytes without a GPU), so that one command
// line serves every machine; sampling options beside --temperature 0; and sizes in `bench offload`
// and `bench sparse`, which measure several configurations. Thread rule: pure functions.
#pragma once

#include <string>
#include <vector>

#include "cli/invocation.h"
#include "cli/options/options.h"

namespace sluice::cli {

// Errors of all: kInvalidArgument naming the option, its value and what to write instead. Some also
// settle what follows from what was given.
void check(RunCommand* run, const Given& given);
void check(TokenizeCommand* tokenize, const Given& given);
void check(ScoreCommand* score, const Given& given);
void check(NeedleCommand* needle, const Given& given);
void check(InspectCommand* inspect, const Given& given);
void check(TraceCommand* trace, const Given& given);
inline void check(DoctorCommand*, const Given&) {}
void check(BenchDecodeCommand* bench, const Given& given);
void check(BenchPrefillCommand* bench, const Given& given);
void check(BenchThroughputCommand* bench, const Given& given);
void check(BenchTransferCommand* bench, const Given& given);
void check(BenchOffloadCommand* bench, const Given& given);
void check(BenchSparseCommand* bench, const Given& given);
void check(BenchOverlapCommand* bench, const Given& given);
void check(BenchTokenizerCommand* bench, const Given& given);
void check(BenchLoadCommand* bench, const Given& given);

// Adds a warning when a batch was made of single words: `sluice run -m DIR Tell me a story`.
void warn(const RunCommand& run, std::vector<std::string>* warnings);

}  // namespace sluice::cli
