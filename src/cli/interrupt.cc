// A flag that the signal handler sets.
#include "cli/interrupt.h"

#include <atomic>
#include <csignal>

#include <unistd.h>

namespace sluice::cli {
namespace {

// Set by the handler, read by any thread. Nothing else is published through it, so relaxed order
// is enough.
std::atomic<bool> flag{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not lock");

void on_interrupt(int) { flag.store(true, std::memory_order_relaxed); }

void on_termination(int signal) {
  if (flag.exchange(true, std::memory_order_relaxed)) _exit(128 + signal);
}

void guard(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESETHAND;  // the second signal has the default action: it ends the process
  sigaction(signal, &action, nullptr);
}

}  // namespace

void guard_interrupts() { guard(SIGINT, on_interrupt); }

// The signals may come in any order, so each ends the process when one came before.
void guard_termination() {
  guard(SIGINT, on_termination);
  guard(SIGTERM, on_termination);
  struct sigaction hangup = {};
  const bool is_ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  if (!is_ignored) guard(SIGHUP, on_termination);
}

void forget_interrupt() {
  flag.store(false, std::memory_order_relaxed);
  guard_interrupts();
}

bool interrupted() { return flag.load(std::memory_order_relaxed); }

}  // namespace sluice::cli
