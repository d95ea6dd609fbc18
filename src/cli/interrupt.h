// Ctrl-C: the first one asks the work to end and keep what it has, the second one kills.
//
// The commands pass `interrupted` to the engine as should_cancel. Thread rule: the flag may be read
// from any thread; guard_interrupts is called once, at the start of main.
#pragma once

namespace sluice::cli {

// From now on the first SIGINT sets the flag; a second one ends the process at once.
void guard_interrupts();
bool interrupted();
// Forgets a first SIGINT that has done what it was for; the next one is a first one again.
void forget_interrupt();

// Thrown where there is nothing to keep (while a model loads): main turns it into exit code 130.
struct Interrupted {};

}  // namespace sluice::cli
