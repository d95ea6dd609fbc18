// The options under test are those of sluice.
#include "cli/parsed_words.h"
#include "cli/program.h"

namespace sluice::cli {

const ProgramSpec& program_under_test() { return program(); }

}  // namespace sluice::cli
