// Parts of the checks of several commands. Errors of all: kInvalidArgument.
//
// Used by option_checks.cc. Thread rule: pure functions.
#pragma once

#include <initializer_list>
#include <string>

#include "cli/invocation.h"

namespace sluice::cli {

// Fails if no model is named.
void require_model(const std::string& model);

// Fails if any of `names` was given: "--kv-host-bytes is given, but <why>".
void refuse_given(const Given& given, std::initializer_list<const char*> names,
                  const std::string& why);

// Fails if both options are words of the command line, since only `winner` would take effect. A
// variable beside a word is no contradiction: the command line wins.
void refuse_both(const Given& given, const char* winner, const char* loser);

}  // namespace sluice::cli
