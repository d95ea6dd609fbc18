// One row for each measurement, in the order of --help.
#include "lab/program.h"

#include "cli/program_main.h"
#include "cli/subcommand.h"
#include "lab/commands.h"

namespace sluice::lab {

const cli::ProgramSpec& program() {
  static const cli::ProgramSpec spec = cli::make_program(
      "sluice-lab", "Measurements of the parts of Sluice, each beside a bound or a reference.",
      {cli::subcommand("transfer", "GB/s between host and device against one large copy",
                       bench_transfer),
       cli::subcommand("store", "GB/s of stored KV against plain files of the same sizes",
                       bench_store),
       cli::subcommand("sparse",
                       "Tokens/s, density and bytes of sparse policies against the whole KV",
                       bench_sparse),
       cli::subcommand("overlap", "How much of a decode step's pages the steps before have read",
                       bench_overlap),
       cli::subcommand("speculative",
                       "Tokens/s with drafts that are verified against plain decode and a model",
                       bench_speculative),
       cli::subcommand("recall", "Attention mass that the tiles of each estimator hold, on a text",
                       bench_recall),
       cli::subcommand("tokenizer", "MB/s of encoding text", bench_tokenizer),
       cli::subcommand("load", "Time and peak memory of loading", bench_load),
       cli::subcommand("structured", "Cost of structured output: decode steps and first tokens",
                       bench_structured),
       cli::subcommand("turns", "Seconds to the first token of a prompt and of a turn after it",
                       bench_turns)});
  return spec;
}

}  // namespace sluice::lab
