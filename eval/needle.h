// The command `sluice-eval needle`.
#pragma once

#include "eval/needle_options.h"

namespace sluice::eval {

// Results go to standard output and into command.out. Returns kExitOk; after Ctrl-C it keeps what
// it has and returns kExitInterrupted. Errors: those of run_needle. Thread rule: main thread.
int needle(const NeedleCommand& command);

}  // namespace sluice::eval
