// Builds the row of one subcommand: name, help, function, options.
//
// A program's table has the rows. In the namespace of the struct of options there are overloads of
// `declare` (the options), `check` (contradictions) and, optionally, `warn`: of sluice those of
// cli/options/command_options.h, bench_options.h and option_checks.h. The table includes them.
// Thread rule: main thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/engine_session.h"
#include "cli/invocation.h"
#include "cli/options/named_policies.h"
#include "cli/options/option_set.h"
#include "cli/terminal.h"

namespace sluice::cli {

// Calls `function` with options of type C.
template <typename C>
class InvocationOf final : public InvocationWith<C> {
 public:
  explicit InvocationOf(int (*function)(const C&)) : function_(function) {}

  void declare_options(OptionSet& set) override { declare(set, &this->options); }

  // Short forms of policies are expanded first, since checks read the policy's name.
  void finish(const Given& given, std::vector<std::string>* warnings) override {
    if constexpr (requires { this->options.engine.sparse; }) {
      short_form_ = expand_policy(&this->options.engine.sparse, given);
    }
    check(&this->options, given);
    // `warn` is an overload that only some commands have.
    if constexpr (requires { warn(this->options, warnings); }) warn(this->options, warnings);
  }

  // Says what a short form stands for. Holds the GPU's lock while the function runs, if the command
  // has --gpu-lock and it is set.
  int run() const override {
    if (!short_form_.empty()) write_message("sparse policy " + short_form_);
    if constexpr (requires { this->options.gpu_lock; }) {
      const auto lock = this->options.gpu_lock ? lock_gpu(this->options.engine.device) : nullptr;
      return function_(this->options);
    } else {
      return function_(this->options);
    }
  }

 private:
  int (*function_)(const C&);
  std::string short_form_;  // of --sparse-policy, with what it stands for; "" if it is none
};

// A row of the table; C follows from the function's parameter.
template <typename C>
SubcommandSpec subcommand(std::string name, std::string summary, int (*function)(const C&),
                          std::vector<std::string> examples = {}) {
  return {.name = std::move(name),
          .summary = std::move(summary),
          .begin = [function] { return std::make_unique<InvocationOf<C>>(function); },
          .examples = std::move(examples)};
}

}  // namespace sluice::cli
