// A flag that the signal handler sets.
#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

namespace sluice::cli {
namespace {

// Set by the handler, read by any thread. Nothing else is published through it, so relaxed order
// is enough.
std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not lock");

void on_interrupt(int) { flag.store(true, std::memory_order_relaxed); }

}  // namespace

void guard_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESETHAND;  // the second signal has the default action: it ends the process
  sigaction(SIGINT, &action, nullptr);
}

void forget_interrupt() {
  flag.store(false, std::memory_order_relaxed);
  guard_interrupts();
}

bool interrupted() { return flag.load(std::memory_order_relaxed); }

}  // namespace sluice::cli
