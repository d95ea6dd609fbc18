// Streams the answer to a prompt through the installed library: answer MODEL PROMPT NUM_TOKENS.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "sluice/inspect.h"
#include "sluice/llm.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const sluice::ModelSummary summary = sluice::summarize_model(argv[1]);
    std::fprintf(stderr, "%s\n", summary.architecture.c_str());
    sluice::LLM llm({.model = argv[1], .device = "cpu"});
    sluice::GenerateOptions options;
    options.on_output = [](std::size_t, const sluice::RequestOutput& output) {
      std::fputs(output.text.c_str(), stdout);
    };
    llm.generate({argv[2]}, {.temperature = 0, .max_tokens = std::atoi(argv[3])}, options);
    std::fputs("\n", stdout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
