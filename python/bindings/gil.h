// The GIL: how calls that take long give it up, and how long ones come back for signals.
//
// Used by every file of the module. No call holds it for over a millisecond at a time
// (python/tests/test_threads.py), so other Python threads, an event loop among them, always run.
// Thread rule: each object belongs to one thread.
#pragma once

#include <chrono>
#include <exception>
#include <utility>

#include <nanobind/nanobind.h>

namespace sluice::python {

namespace nb = nanobind;

// Gives the GIL away now and then while a long list is converted. REQUIRES: the GIL is held, and
// what is converted may change between two ticks.
class GilPauses {
 public:
  void tick() {
    if (++count_ % kTicks != 0 || Clock::now() - since_ < kLongest) return;
    { const nb::gil_scoped_release release; }
    since_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kTicks = 64;  // a look at the clock costs as much as some conversions
  static constexpr std::chrono::microseconds kLongest{200};

  int count_ = 0;
  Clock::time_point since_ = Clock::now();
};

// Runs handlers of signals such as Ctrl-C and reports progress from within a call that runs without
// the GIL, ten times a second: each look waits for the threads that want the GIL, too.
class Watch {
 public:
  // `on_progress`: None or a callable. REQUIRES: the GIL is held, here and in the destructor.
  explicit Watch(nb::object on_progress = nb::none())
      : on_progress_(std::move(on_progress)), is_main_thread_(runs_handlers()) {}

  bool reports() const { return !on_progress_.is_none(); }

  // Also calls on_progress(args...) if there is one. Errors: what a handler or on_progress raises.
  // REQUIRES: the GIL is not held.
  template <typename... Args>
  void look(const Args&... args) {
    const bool calls = reports() && sizeof...(args) > 0;
    if (!calls && !is_main_thread_) return;
    const auto now = Clock::now();
    if (now - last_ < kInterval) return;
    const nb::gil_scoped_acquire acquire;
    check_signals();
    if (calls) on_progress_(args...);
    last_ = Clock::now();
  }

  // For calls that an exception must not leave: whether a look has failed, now or before. `rethrow`
  // after the call then throws its exception.
  bool stops() {
    try {
      if (!error_) look();
    } catch (...) {
      error_ = std::current_exception();
    }
    return error_ != nullptr;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

  // REQUIRES: the GIL is held.
  static void check_signals() {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kInterval{100};

  static bool runs_handlers() {
    const nb::module_ threading = nb::module_::import_("threading");
    return threading.attr("main_thread")().is(threading.attr("current_thread")());
  }

  nb::object on_progress_;
  bool is_main_thread_;
  Clock::time_point last_ = Clock::now();
  std::exception_ptr error_;
};

}  // namespace sluice::python
