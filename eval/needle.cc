// sluice-eval needle: hides facts in long texts, asks the model for them and draws a heat map of
// the answers; with several kinds or a list of policies, all of them as a table. Runs on the main
// thread.
#include "eval/needle.h"

#include "cli/exit_codes.h"
#include "cli/terminal.h"
#include "eval/grid.h"
#include "eval/needle_run.h"

namespace sluice::eval {

using namespace cli;  // what programs print and read

int needle(const NeedleCommand& command) {
  if (command.is_table()) return needle_grid(command);
  const NeedleReport report = run_needle(command);
  write_result(needle_table(report, wants_colour(stdout)));
  for (const std::string& line : write_report(report)) write_result(line + "\n");
  write_result(write_picture(report) + "\n");
  return report.complete ? kExitOk : kExitInterrupted;
}

}  // namespace sluice::eval
