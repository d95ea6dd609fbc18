// One row: needles, and the tasks of RULER as kinds of them.
#include "eval/program.h"

#include "cli/program_main.h"
#include "cli/subcommand.h"
#include "eval/needle.h"

namespace sluice::eval {

const cli::ProgramSpec& program() {
  static const cli::ProgramSpec spec = cli::make_program(
      "sluice-eval", "Tests of long-context language models in Sluice.",
      {cli::subcommand("needle", "Hide facts in long texts, ask for them, draw a heat map", needle,
                       {"sluice-eval needle -m models/needle --lengths 1K,2K,4K",
                        "sluice-eval needle -m DIR --policies full,aggressive --kind number,vt"})});
  return spec;
}

}  // namespace sluice::eval
