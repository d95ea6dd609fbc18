// Ctrl-C: the first one requests an orderly end that keeps results, the second one ends the
// process.
//
// The commands pass `interrupted` to the engine as should_cancel. Thread rule: any thread may read
// the flag; guard_interrupts is called once, at the start of main.
#pragma once

namespace sluice::cli {

// Installs the handler: the first SIGINT sets the flag, a second one ends the process at once.
void guard_interrupts();
// SIGTERM counts as Ctrl-C, too: for a server, which a supervisor stops. So does SIGHUP, which a
// terminal sends when it is closed, unless it is ignored (nohup). Called once.
void guard_termination();
// True after the first SIGINT, or another one that is guarded.
bool interrupted();
// Clears the flag and installs the handler again, after a SIGINT that ended only one answer.
void forget_interrupt();

// Thrown if nothing is worth keeping yet, such as while a model loads; main returns exit code 130.
struct Interrupted {};

}  // namespace sluice::cli
