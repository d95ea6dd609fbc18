// sluice completion and sluice man: what the table of commands says, for shells and for man. Runs
// on the main thread.
#include "cli/commands.h"
#include "cli/options/completion_text.h"
#include "cli/options/man_text.h"
#include "cli/program.h"
#include "cli/terminal.h"

namespace sluice::cli {

// The table is that of this program, so a script has what this build has.
int completion(const CompletionCommand& command) {
  write_result(completion_script(program(), command.shell));
  return kExitOk;
}

int man(const ManCommand&) {
  write_result(man_page(program()));
  return kExitOk;
}

}  // namespace sluice::cli
