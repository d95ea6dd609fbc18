// The program: reads the command line, runs one command, turns errors into exit codes.
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/gpu_lock.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

// Runs the command while it holds the lock that it asked for.
template <typename C>
int with_lock(int (*function)(const C&), const C& command) {
  const std::unique_ptr<GpuLock> lock =
      command.gpu_lock ? lock_gpu(command.engine.device) : nullptr;
  return function(command);
}

struct RunCommandVisitor {
  int operator()(const PrintCommand& command) const {
    write_result(command.text);
    return kExitOk;
  }
  int operator()(const RunCommand& command) const { return with_lock(run, command); }
  int operator()(const NeedleCommand& command) const { return with_lock(needle, command); }
  int operator()(const InspectCommand& command) const { return inspect(command); }
  int operator()(const TraceCommand& command) const { return with_lock(trace, command); }
  int operator()(const DoctorCommand& command) const { return doctor(command); }
  int operator()(const BenchDecodeCommand& command) const {
    return with_lock(bench_decode, command);
  }
  int operator()(const BenchPrefillCommand& command) const {
    return with_lock(bench_prefill, command);
  }
  int operator()(const BenchThroughputCommand& command) const {
    return with_lock(bench_throughput, command);
  }
  int operator()(const BenchTransferCommand& command) const {
    return with_lock(bench_transfer, command);
  }
  int operator()(const BenchOffloadCommand& command) const {
    return with_lock(bench_offload, command);
  }
  int operator()(const BenchSparseCommand& command) const {
    return with_lock(bench_sparse, command);
  }
  int operator()(const BenchOverlapCommand& command) const {
    return with_lock(bench_overlap, command);
  }
  int operator()(const BenchTokenizerCommand& command) const { return bench_tokenizer(command); }
  int operator()(const BenchLoadCommand& command) const { return with_lock(bench_load, command); }
};

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

int run_program(const std::vector<std::string>& words) {
  try {
    guard_interrupts();
    const Command command = parse_command_line(words);
    const int exit_code = std::visit(RunCommandVisitor(), command);
    flush_results();
    return exit_code;
  } catch (const Error& error) {
    write_message(std::string("sluice: ") + error.what());
    return exit_code_of(error.code());
  } catch (const Interrupted&) {
    return kExitInterrupted;
  } catch (const std::bad_alloc&) {
    write_message("sluice: this machine's memory is used up; lower --max-model-len");
    return kExitDoesNotFit;
  } catch (const std::exception& error) {
    write_message(std::string("sluice: unexpected: ") + error.what());
    return kExitFailure;
  }
}

}  // namespace
}  // namespace sluice::cli

int main(int argc, char** argv) {
  return sluice::cli::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
