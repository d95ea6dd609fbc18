// A subcommand as one row: name, help, function, options.
//
// program.cc has the table. The options are a struct with three overloads: `declare` says what can
// be given (cli/options/command_options.h, cli/options/bench_options.h), `check` what must not be
// together (cli/options/option_checks.h), `warn` what is no error. Thread rule: main thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/engine_session.h"
#include "cli/invocation.h"
#include "cli/options/bench_options.h"
#include "cli/options/command_options.h"
#include "cli/options/option_checks.h"

namespace sluice::cli {

// The use of a subcommand whose options are a C.
template <typename C>
class InvocationOf final : public InvocationWith<C> {
 public:
  explicit InvocationOf(int (*function)(const C&)) : function_(function) {}

  void declare_options(OptionSet& set) override { declare(set, &this->options); }

  void finish(const Given& given, std::vector<std::string>* warnings) override {
    check(&this->options, given);
    if constexpr (requires { warn(this->options, warnings); }) warn(this->options, warnings);
  }

  // Holds the lock that the options ask for while it runs.
  int run() const override {
    if constexpr (requires { this->options.gpu_lock; }) {
      const auto lock = this->options.gpu_lock ? lock_gpu(this->options.engine.device) : nullptr;
      return function_(this->options);
    } else {
      return function_(this->options);
    }
  }

 private:
  int (*function_)(const C&);
};

template <typename C>
SubcommandSpec subcommand(std::string name, std::string summary, int (*function)(const C&),
                          std::vector<std::string> examples = {}) {
  return {.name = std::move(name),
          .summary = std::move(summary),
          .begin = [function] { return std::make_unique<InvocationOf<C>>(function); },
          .examples = std::move(examples)};
}

}  // namespace sluice::cli
