// sluice trace: writes logits and intermediate tensors of one prompt to a safetensors file.
//
// Read by tools/align/compare_layers.py. Runs on the main thread.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "io/safetensors.h"

namespace sluice::cli {
namespace {

// The ids given, or those of --prompt or --file as plain text.
std::vector<int32_t> gather_tokens(const TraceCommand& command, const LLM& llm) {
  if (!command.tokens.empty()) return command.tokens;
  return llm.encode(command.file.empty() ? command.prompt : read_user_file("--file", command.file));
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// An empty trace after Ctrl-C.
LLM::Trace trace_with_progress(const TraceCommand& command, const std::vector<int32_t>& token_ids,
                               LLM* llm) {
  ProgressLine line("tracing");
  GenerateOptions options;
  options.should_cancel = interrupted;
  options.on_progress = [&](const Progress& progress) {
    const int64_t done = progress.num_prompt_tokens_done, total = progress.num_prompt_tokens_total;
    line.update_tokens(done, total, fmt::format("{} of {} tokens", done, total));
  };
  return llm->trace(token_ids, command.taps, options);
}

// A view of the tensor, which must outlive the write.
SafetensorsInput as_input(const TapTensor& tensor) {
  return {.name = tensor.name,
          .dtype = DType::kF32,
          .shape = tensor.shape,
          .bytes = std::as_bytes(std::span(tensor.data))};
}

}  // namespace

int trace(const TraceCommand& command) {
  EngineOptions options = command.engine;
  // One text is traced, so its blocks would be kept in vain.
  options.enable_prefix_caching = false;
  options.skip_tokenizer_init = !command.tokens.empty();  // ids need no tokenizer
  LLM llm = load_llm(options, command.verbose);
  const std::vector<int32_t> token_ids = gather_tokens(command, llm);
  const LLM::Trace result = trace_with_progress(command, token_ids, &llm);
  if (interrupted()) return kExitInterrupted;

  std::vector<SafetensorsInput> tensors{as_input(result.logits)};
  for (const TapTensor& tap : result.taps) tensors.push_back(as_input(tap));
  tensors.push_back({.name = "token_ids",
                     .dtype = DType::kI32,
                     .shape = {static_cast<int64_t>(token_ids.size())},
                     .bytes = std::as_bytes(std::span(token_ids))});
  {
    const ProgressLine line("writing " + command.out);
    write_safetensors(command.out, tensors, {{"model", model_name(options.model)}});
  }

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
