// sluice needle: hides facts in long texts, asks the model for them and draws a heat map of the
// answers; with several kinds or a list of policies, all of them as a table. Runs on the main
// thread.
#include "cli/commands.h"
#include "cli/needle/grid.h"
#include "cli/needle/needle_run.h"
#include "cli/terminal.h"

namespace sluice::cli {

int needle(const NeedleCommand& command) {
  if (command.is_table()) return needle_grid(command);
  const NeedleReport report = run_needle(command);
  write_result(needle_table(report, wants_colour(stdout)));
  for (const std::string& line : write_report(report)) write_result(line + "\n");
  write_result(write_picture(report) + "\n");
  return report.complete ? kExitOk : kExitInterrupted;
}

}  // namespace sluice::cli
