// sluice inspect: what a model is and what of it fits, from headers alone.
#include "sluice/inspect.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/json_text.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"

namespace sluice::cli {
namespace {

std::string describe_model(const ModelSummary& model) {
  Table table;
  table.align_left(1);
  table.add({"architecture", model.architecture});
  table.add({"parameters", format_count(static_cast<double>(model.num_parameters)) +
                               (model.tied_embeddings ? " (embeddings tied)" : "")});
  table.add({"weights", format_bytes(static_cast<double>(model.weight_bytes)) + " as bf16"});
  table.add({"layers", fmt::format("{} of width {}", model.num_layers, model.hidden_size)});
  table.add({"heads", fmt::format("{} query, {} KV, of width {}", model.num_q_heads,
                                  model.num_kv_heads, model.head_dim)});
  table.add({"vocabulary", fmt::format("{}", model.vocab_size)});
  table.add({"positions", format_tokens(model.max_position_embeddings)});
  table.add({"rope", model.rope});
  table.add({"KV per token", format_bytes(static_cast<double>(model.kv_bytes_per_token))});
  return table.to_string();
}

std::string describe_plan(const MemoryPlan& plan) {
  Table table({"memory plan", "where", "size"});
  table.align_left(1);
  for (const MemoryPlanEntry& entry : plan.entries) {
    table.add({entry.name, entry.memory, format_bytes(static_cast<double>(entry.bytes))});
  }
  table.add({"budget", "device", format_bytes(static_cast<double>(plan.device_budget_bytes))});
  table.add({"there is", "device", format_bytes(static_cast<double>(plan.device_memory_bytes))});
  std::string text = table.to_string() + "\nKV offload: " + plan.kv_offload + "\n";
  for (const std::string& note : plan.notes) text += note + "\n";
  if (!plan.fits) return text + "does not fit: " + plan.remedy + "\n";
  const int64_t tokens = plan.num_blocks * plan.block_size;
  text += fmt::format(
      "fits: {} tokens of KV cache ({} blocks of {}); the longest request, prompt "
      "and output together, is {} tokens\n",
      tokens, plan.num_blocks, plan.block_size, plan.max_model_len);
  return text;
}

nlohmann::ordered_json plan_json(const ModelSummary& model, const MemoryPlan& plan) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::array();
  for (const MemoryPlanEntry& entry : plan.entries) {
    entries.push_back({{"name", entry.name}, {"memory", entry.memory}, {"bytes", entry.bytes}});
  }
  return {{"model",
           {{"architecture", model.architecture},
            {"num_parameters", model.num_parameters},
            {"weight_bytes", model.weight_bytes},
            {"num_layers", model.num_layers},
            {"hidden_size", model.hidden_size},
            {"num_q_heads", model.num_q_heads},
            {"num_kv_heads", model.num_kv_heads},
            {"head_dim", model.head_dim},
            {"vocab_size", model.vocab_size},
            {"max_position_embeddings", model.max_position_embeddings},
            {"rope", model.rope},
            {"tied_embeddings", model.tied_embeddings},
            {"kv_bytes_per_token", model.kv_bytes_per_token}}},
          {"plan",
           {{"fits", plan.fits},
            {"remedy", plan.remedy},
            {"entries", entries},
            {"device_memory_bytes", plan.device_memory_bytes},
            {"device_budget_bytes", plan.device_budget_bytes},
            {"num_blocks", plan.num_blocks},
            {"block_size", plan.block_size},
            {"max_model_len", plan.max_model_len},
            {"kv_offload", plan.kv_offload},
            {"notes", plan.notes}}}};
}

}  // namespace

int inspect(const InspectCommand& command) {
  const ModelSummary model = summarize_model(command.engine.model);
  const MemoryPlan plan = plan_memory(command.engine);
  if (command.json) {
    write_result(json_text(plan_json(model, plan), 1));
  } else {
    write_result(describe_model(model) + "\n" + describe_plan(plan));
  }
  if (!plan.fits && command.json) write_message("does not fit: " + plan.remedy);
  return plan.fits ? kExitOk : kExitDoesNotFit;
}

}  // namespace sluice::cli
