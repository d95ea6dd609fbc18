// sluice trace: logits and inner tensors of one pass over some tokens, as a safetensors file.
//
// For tools/align/compare_layers.py and for anybody who wants to look inside.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "io/file.h"
#include "io/safetensors.h"

namespace sluice::cli {
namespace {

std::vector<int32_t> gather_tokens(const TraceCommand& command, const LLM& llm) {
  if (!command.tokens.empty()) return command.tokens;
  return llm.encode(command.file.empty() ? command.prompt : read_file(command.file));
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsInput as_input(const TapTensor& tensor) {
  return {.name = tensor.name,
          .dtype = DType::kF32,
          .shape = tensor.shape,
          .bytes = std::as_bytes(std::span(tensor.data))};
}

}  // namespace

int trace(const TraceCommand& command) {
  EngineOptions options = command.engine;
  options.enable_prefix_caching = false;  // every position is computed, none found
  options.skip_tokenizer_init = !command.tokens.empty();
  LLM llm = load_llm(options, command.verbose);
  const std::vector<int32_t> token_ids = gather_tokens(command, llm);
  const LLM::Trace result = llm.trace(token_ids, command.taps);
  if (interrupted()) return kExitInterrupted;

  std::vector<SafetensorsInput> tensors{as_input(result.logits)};
  for (const TapTensor& tap : result.taps) tensors.push_back(as_input(tap));
  tensors.push_back({.name = "token_ids",
                     .dtype = DType::kI32,
                     .shape = {static_cast<int64_t>(token_ids.size())},
                     .bytes = std::as_bytes(std::span(token_ids))});
  write_safetensors(command.out, tensors, {{"model", model_name(options.model)}});

  Table table({"tensor", "type", "shape"});
  table.align_left(1);
  table.align_left(2);
  for (const SafetensorsInput& tensor : tensors) {
    table.add({tensor.name, std::string(dtype_name(tensor.dtype)), shape_text(tensor.shape)});
  }
  write_result(table.to_string());
  write_message("written to " + command.out);
  return kExitOk;
}

}  // namespace sluice::cli
