// sluice inspect: describes a model, checks its files and plans its memory, without reading
// weights. Runs on the main thread.
#include "sluice/inspect.h"

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "device/host/host_memory.h"
#include "text/inspect_json.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

// The model's shape, from its configuration.
std::string describe_model(const ModelSummary& model) {
  Table table;
  table.align_left(1);
  table.add({"architecture", model.architecture});
  std::string parameters = format_count(static_cast<double>(model.num_parameters));
  if (model.tied_embeddings) parameters += " (embeddings tied)";
  if (model.num_active_parameters < model.num_parameters) {
    parameters += fmt::format(" ({} for a token)",
                              format_count(static_cast<double>(model.num_active_parameters)));
  }
  table.add({"parameters", parameters});
  table.add(
      {"weights", fmt::format("{} as {}", format_bytes(static_cast<double>(model.weight_bytes)),
                              model.weight_formats)});
  table.add({"layers", fmt::format("{} of width {}", model.num_layers, model.hidden_size)});
  table.add({"heads", fmt::format("{} query, {} KV, of width {}", model.num_q_heads,
                                  model.num_kv_heads, model.head_dim)});
  table.add({"vocabulary", fmt::format("{}", model.vocab_size)});
  table.add({"positions", format_tokens(model.max_position_embeddings)});
  table.add({"rope", model.rope});
  table.add({"KV per token", format_bytes(static_cast<double>(model.kv_bytes_per_token))});
  if (model.state_bytes > 0) {
    table.add({"state per sequence", format_bytes(static_cast<double>(model.state_bytes))});
  }
  return table.to_string();
}

// The state of weights, tokenizer and chat template.
std::string describe_files(const ModelCheck& check) {
  Table table;
  table.align_left(1);
  table.add({"weight files", check.weights});
  table.add({"tokenizer", check.tokenizer});
  table.add(
      {"chat", check.chat.empty() ? "template works" : check.chat + " (needed for --chat alone)"});
  return table.to_string();
}

// One row per entry. Two consecutive entries of equal name and size are an array and its pinned
// copy and share a row. The entry that exceeds the device's budget first is marked.
void add_entries(const MemoryPlan& plan, Table& table) {
  size_t device_bytes = 0;
  bool marked = false;
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    const MemoryPlanEntry& entry = plan.entries[i];
    // The entry before has already been printed with this one.
    const bool is_copy =
        i > 0 && plan.entries[i - 1].name == entry.name && plan.entries[i - 1].bytes == entry.bytes;
    if (is_copy) continue;
    const bool has_copy = i + 1 < plan.entries.size() && plan.entries[i + 1].name == entry.name &&
                          plan.entries[i + 1].bytes == entry.bytes;
    const std::string where =
        has_copy ? entry.memory + ", " + plan.entries[i + 1].memory : entry.memory;
    if (entry.memory == "device") device_bytes += entry.bytes;
    // device_bytes is the sum so far, so this is the entry that crosses the budget.
    const bool breaks = !marked && device_bytes > plan.device_budget_bytes;
    marked = marked || breaks;
    table.add({entry.name, where,
               format_bytes(static_cast<double>(entry.bytes)) + (has_copy ? " each" : ""),
               breaks ? "<- more than the budget" : ""});
  }
}

// The plan as a table, then notes, warnings and the verdict.
std::string describe_plan(const MemoryPlan& plan, const std::vector<std::string>& warnings) {
  Table table({"memory plan", "where", "size", ""});
  table.align_left(1);
  table.align_left(3);
  const auto size = [](size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  add_entries(plan, table);
  table.add({"used", "device", size(plan.device_used_bytes()), ""});
  table.add({"budget", "device", size(plan.device_budget_bytes), ""});
  table.add({"total", "device", size(plan.device_memory_bytes), ""});
  table.add({plan.host_is_limited ? "container's limit" : "total", "host",
             size(plan.host_memory_bytes), ""});
  table.add({"available now", "host", size(plan.host_available_bytes), ""});
  std::string text = table.to_string() + "\nKV cache: " + plan.kv_cache_dtype +
                     "\nKV offload: " + plan.kv_offload + "\n";
  if (!plan.kv_on_device.empty()) text += "KV kept on the device: " + plan.kv_on_device + "\n";
  for (const std::string& note : plan.notes) text += note + "\n";
  for (const std::string& warning : warnings) text += "warning: " + warning + "\n";
  if (!plan.fits) return text + "does not fit: " + plan.remedy + "\n";
  const int64_t tokens = plan.num_blocks * plan.block_size;
  text += fmt::format(
      "fits: {} tokens of KV cache ({} blocks of {}); the longest request, prompt "
      "and output together, is {} tokens\n",
      tokens, plan.num_blocks, plan.block_size, plan.max_model_len);
  return text;
}

// One line for each file that cannot be used.
std::string describe_problems(const ModelCheck& check) {
  std::string text;
  for (const std::string& problem : check.problems) text += "does not run: " + problem + "\n";
  return text;
}

// The host of a machine that is not here is as large as this one unless it is given.
PlannedMachine planned_machine(const InspectCommand& command, size_t gpu_bytes) {
  return {.gpu_bytes = gpu_bytes,
          .host_bytes = command.host_memory.value_or(read_host_memory().total_bytes)};
}

// Of this machine, or of the one that --gpu-memory describes.
MemoryPlan plan_of(const InspectCommand& command) {
  if (!command.gpu_memory) return plan_memory(command.engine);
  return plan_memory(command.engine, planned_machine(command, *command.gpu_memory));
}

// "128K", and whether the model or the memory ends it. "-": not even the weights fit.
std::string longest_request(const InspectCommand& command, const PlannedMachine& machine,
                            KvOffload offload, int64_t model_limit) {
  // All other options count, so the table answers for them, too: --max-num-seqs, --block-size.
  EngineOptions engine = command.engine;
  engine.kv.offload = offload;
  // The column of the GPU alone.
  if (offload == KvOffload::kOff && engine.weights_offload == WeightsOffload::kAuto) {
    engine.weights_offload = WeightsOffload::kOff;
  }
  const MemoryPlan plan = plan_memory(engine, machine);
  if (!plan.fits) return "-";
  return format_tokens(plan.max_model_len) + (plan.max_model_len >= model_limit ? " (all)" : "");
}

// GPUs by their memory, with KV on the GPU alone and as --kv-offload auto decides.
std::string describe_fit(const InspectCommand& command, const ModelSummary& model) {
  constexpr size_t kGib = size_t{1} << 30;
  // Sizes that are sold, with one or two cards that have each.
  struct Card {
    size_t gib;
    const char* examples;
  };
  constexpr Card kCards[] = {{8, "RTX 4060"},      {12, "RTX 4070"}, {16, "RTX 4080, T4"},
                             {24, "RTX 4090, L4"}, {32, "RTX 5090"}, {48, "L40S, A6000"},
                             {80, "A100, H100"},   {141, "H200"}};
  Table table({"GPU memory", "as", "KV on the GPU", "also in host memory"});
  table.align_left(1);
  const int64_t limit = model.max_position_embeddings;
  for (const Card& card : kCards) {
    const PlannedMachine machine = planned_machine(command, card.gib * kGib);
    table.add({fmt::format("{} GiB", card.gib), card.examples,
               longest_request(command, machine, KvOffload::kOff, limit),
               longest_request(command, machine, KvOffload::kAuto, limit)});
  }
  // Of every row, since only the GPU differs.
  const size_t host_bytes = planned_machine(command, 0).host_bytes;
  return fmt::format(
      "longest request in tokens, prompt and output together, with {} of host memory\n"
      "(all: as long as the model reads; -: the weights do not fit)\n\n{}",
      format_bytes(static_cast<double>(host_bytes)), table.to_string());
}

}  // namespace

int inspect(const InspectCommand& command) {
  const ModelSummary model = summarize_model(command.engine.model, command.engine.kv.cache_dtype);
  if (command.fit) {
    write_result(describe_model(model) + "\n" + describe_fit(command, model));
    return kExitOk;
  }
  const ModelCheck check = check_model(command.engine);
  const MemoryPlan plan = plan_of(command);
  if (command.json) {
    write_result(json_text(inspect_json(model, check, plan), 1));
    // The verdict also goes to standard error, for a person who redirects the JSON.
    for (const std::string& problem : check.problems) write_message("does not run: " + problem);
    if (!plan.fits) write_message("does not fit: " + plan.remedy);
  } else {
    std::vector<std::string> warnings = check.warnings;
    warnings.insert(warnings.end(), plan.warnings.begin(), plan.warnings.end());
    write_result(describe_model(model) + describe_files(check) + "\n" +
                 describe_plan(plan, warnings) + describe_problems(check));
  }
  // Unusable files come before a plan that does not fit: more memory would not help.
  if (!check.problems.empty()) return kExitModel;
  return plan.fits ? kExitOk : kExitDoesNotFit;
}

}  // namespace sluice::cli
