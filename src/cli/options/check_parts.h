// Parts of the checks of several commands. Errors of all: kInvalidArgument.
//
// Used by option_checks.cc and bench_checks.cc. Thread rule: pure functions.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "cli/invocation.h"
#include "cli/options/engine_uses.h"

namespace sluice::cli {

// Takes the first of `words` as the model if none is named by an option or a variable, unless it is
// "-" or has spaces and so is a text.
void take_model_word(std::string* model, std::vector<std::string>* words);

// Fails if no model is named.
void require_model(const std::string& model);

// Fails if any of `names` was given: "--kv-host-bytes is given, but <why>".
void refuse_given(const Given& given, std::initializer_list<const char*> names,
                  const std::string& why);

// Fails if both options are words of the command line, since only `winner` would take effect. A
// variable beside a word is no contradiction: the command line wins.
void refuse_both(const Given& given, const char* winner, const char* loser);

// Checks that every command with an engine needs; `unused`: what it does not do. With `auto` either
// mode may be chosen, so both kinds of sizes are accepted, and the plan warns of those without
// effect.
void check_engine(const EngineOptions& engine, const Given& given,
                  std::initializer_list<Unused> unused = {});

// Refuses options that contradict a short form of the list.
void check_policies(const std::vector<std::string>& policies, const SparseOptions& options,
                    const Given& given);

// Fails if no directory is named.
void require_directory(const std::string& dir);

}  // namespace sluice::cli
