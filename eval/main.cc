// The program sluice-eval (eval/program.h).
#include "cli/program_main.h"
#include "eval/program.h"

int main(int argc, char** argv) {
  return sluice::cli::program_main(sluice::eval::program(), argc, argv);
}
