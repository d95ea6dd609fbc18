// What a needle test was asked for, as one line of text: equal lines ask the same questions of the
// same model in the same way.
//
// Used by needle.json, and by tables of several tests to decide what is already there. Thread rule:
// pure functions.
#pragma once

#include <string>

#include "eval/needle_options.h"

namespace sluice::eval {

// "--model d --lengths 4096,8192 --kind vt ... --sparse-policy full+quest": every option that has
// an effect on questions and answers. Of the engine's options those that differ from their
// defaults.
std::string needle_request(const NeedleCommand& command);

}  // namespace sluice::eval
