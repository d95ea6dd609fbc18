// Runs one command of a program and turns errors into exit codes.
#include "cli/program_main.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "text/build_info.h"

namespace sluice::cli {
namespace {

const std::vector<std::string> kFooter = {
    "Every option is read from the environment too: SLUICE_ and its name, as in "
    "SLUICE_MODEL=models/needle or SLUICE_MAX_MODEL_LEN=8K. The command line wins.",
    "Exit status: 0 done, 1 another failure, 2 usage (also a file of yours that cannot be read), 3 "
    "the model (or a thing it needs) cannot be used, 4 it does not fit, 130 interrupted (what was "
    "made so far is kept), 141 nobody reads the results any more."};

// Variables named SLUICE_... that are no options: other parts, tests or the build read them. The
// check for misspelt variables must not report them.
const std::vector<std::string> kOtherVariables = {
    "CPU_ISA", "LOCK_DIR", "GPU_LOCK_HELD", "SOURCE_DIR", "EVERY_WAIT", "COMMIT",
    "VERSION", "TEST_",    "BUILD_",        "CUDA",       "CUDA_",      "API_KEY"};

// The first failed allocation frees this reserve, then throws. Unwinding needs memory: destructors
// of the JSON library allocate, and an exception from a destructor would abort the program. Pages
// of the reserve are never touched, so it costs address space alone.
constexpr size_t kMostReserveBytes = size_t{4} << 20, kLeastReserveBytes = size_t{64} << 10;
std::atomic<void*> memory_reserve = nullptr;

void reserve_memory() {
  for (size_t size = kMostReserveBytes; size >= kLeastReserveBytes && !memory_reserve; size /= 2) {
    memory_reserve = std::malloc(size);
  }
  std::set_new_handler([] {
    std::free(memory_reserve.exchange(nullptr));
    throw std::bad_alloc();
  });
}

// A descriptor below 3 that is closed would be given to the next file or socket, and messages and
// results would go there. In its place comes one that cannot be used either: writes to it fail, and
// are seen, as those to a closed one.
void fill_closed_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest that is free, so it is this one.
    if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) std::_Exit(kExitFailure);
  }
}

// What a signal does beside SIGINT, and SIGTERM and SIGHUP of a server (interrupt.h). All others
// keep their defaults: they end the program, as whoever sends them wants.
void ignore_signals_of_writes() {
  // write() then fails, and is seen: a reader that ended must not end a server that logs to it, and
  // a limit of file sizes (ulimit -f) must leave no temporary files. Sockets send no SIGPIPE.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// Refuses a stack limit that would crash the program later: every thread has a stack of that size.
// Errors: kDoesNotFit.
void require_stack() {
  constexpr rlim_t kMinStackKib = 256;
  rlimit limit = {};
  if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (limit.rlim_cur / 1024 >= kMinStackKib) return;
  fail(ErrorCode::kDoesNotFit,
       "the stack is limited to {} KiB, and Sluice needs {}; raise it with ulimit -s",
       limit.rlim_cur / 1024, kMinStackKib);
}

// The exit code that --help promises for each kind of error.
int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return kExitUsage;
    case ErrorCode::kModel:
      return kExitModel;
    case ErrorCode::kUnsupported:
      return kExitModel;
    case ErrorCode::kDoesNotFit:
      return kExitDoesNotFit;
    case ErrorCode::kIo:
      return kExitFailure;
    case ErrorCode::kDevice:
      return kExitFailure;
  }
  return kExitFailure;
}

// Prints help, or runs the command. Help needs no stack check, so it works under any limit.
int run_outcome(const ParseOutcome& outcome) {
  if (!outcome.invocation) {
    write_result(outcome.help);
    return kExitOk;
  }
  require_stack();
  return outcome.invocation->run();
}

// Catches every exception: nothing but an exit code and one message leaves it.
int run_program(const ProgramSpec& program, const std::vector<std::string>& words) {
  const std::string name = program.name + ": ";
  try {
    reserve_memory();
    guard_interrupts();
    ignore_signals_of_writes();
    const ParseOutcome outcome = parse_words(program, words);
    for (const std::string& warning : outcome.warnings) write_message(name + warning);
    const int exit_code = run_outcome(outcome);
    flush_results();
    return exit_code;
  } catch (const Error& error) {
    write_message(name + error.what());
    return exit_code_of(error.code());
  } catch (const Interrupted&) {
    return kExitInterrupted;
  } catch (const ClosedPipe&) {
    return kExitClosedPipe;
  } catch (const std::bad_alloc&) {
    write_message(name + "this machine's memory is used up; lower --max-model-len");
    return kExitDoesNotFit;
  } catch (const std::exception& error) {
    write_message(name + "unexpected: " + error.what());
    return kExitFailure;
  }
}

}  // namespace

ProgramSpec make_program(std::string name, std::string summary,
                         std::vector<SubcommandSpec> subcommands) {
  std::string version = fmt::format("{} {} ({})", name, build_version(), build_commit());
  return {.name = std::move(name),
          .summary = std::move(summary),
          .footer = kFooter,
          .version = std::move(version),
          .subcommands = std::move(subcommands),
          .other_variables = kOtherVariables};
}

int program_main(const ProgramSpec& program, int argc, char** argv) {
  fill_closed_descriptors();
  const int exit_code = run_program(program, std::vector<std::string>(argv + 1, argv + argc));
  try {
    flush_results();  // what an error came after
  } catch (const Error&) {
    // The exit code is that of the first error.
  } catch (const ClosedPipe&) {
    // Likewise.
  }
  return exit_code;
}

}  // namespace sluice::cli
