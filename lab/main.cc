// The program sluice-lab (lab/program.h).
#include "cli/program_main.h"
#include "lab/program.h"

int main(int argc, char** argv) {
  return sluice::cli::program_main(sluice::lab::program(), argc, argv);
}
