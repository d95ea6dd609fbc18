// The program sluice (cli/program.h).
#include "cli/program.h"
#include "cli/program_main.h"

int main(int argc, char** argv) {
  return sluice::cli::program_main(sluice::cli::program(), argc, argv);
}
