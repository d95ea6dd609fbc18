// Engine options that a command would accept and never use.
//
// Commands take the engine's options as a whole, but each does a part of what an engine can. Its
// check names what it does not do, and options for that are refused: `sluice score
// --speculative-method ngram` drafts nothing, since scoring generates no text.
// Used by check_parts.cc, option_checks.cc and bench_checks.cc. Thread rule: pure functions.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "cli/invocation.h"
#include "sluice/engine_options.h"

namespace sluice::cli {

// What a command may not do with its engine.
enum class Unused {
  kDecode,      // it decodes nothing: a policy for decode
  kDrafts,      // it generates no text of its own choice: speculation
  kStalls,      // no sequence decodes while a prompt comes: --max-stall-ms
  kSequences,   // it sets the number of sequences itself: --max-num-seqs
  kAudit,       // it does not show what the audit measures: --sparse-audit
  kNoPrefixes,  // it needs the prefix cache: --no-prefix-caching
  kSeed,        // nothing is random unless the weights are: --seed
};

// Errors: kInvalidArgument naming the first option given for something in `unused`.
void refuse_unused(const EngineOptions& engine, const Given& given,
                   std::initializer_list<Unused> unused);

// Refuses every option of the engine, as for a server that runs elsewhere.
// Errors: kInvalidArgument, "--device is given, but <why>".
void refuse_engine_options(const Given& given, const std::string& why);

// Refuses options of a part of the engine that is off: of a KV store without its directory, of KV
// events without their endpoint, of speculation without a method, of n-grams with a method that
// looks for none. Errors: kInvalidArgument.
void refuse_options_of_parts_off(const EngineOptions& engine, const Given& given);

}  // namespace sluice::cli
