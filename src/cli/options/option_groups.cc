// Options that several commands share. Their names and help texts are in the rows of EngineOptions.
#include "cli/options/option_groups.h"

#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/options/named_policies.h"
#include "cli/options/option_rows.h"
#include "core/option_check.h"

namespace sluice::cli {
namespace {

// The engine's rows. The help of the policy's name also lists what only the command line knows.
void declare_sparse(OptionSet& set, SparseOptions* sparse) {
  for (auto row : kSparseOptionRows) {
    const std::string help = std::string(row.facts.help) + "; " + short_forms_help();
    if (row.facts.name == "sparse_policy") row.facts.help = help;
    add_option(set, row, sparse);
  }
}

}  // namespace

// The order here is the order in --help.
void declare_engine(OptionSet& set, EngineOptions* engine) {
  set.group("Engine");
  add_options(set, kEngineOptionRows, engine);
  add_options(set, kKvOptionRows, &engine->kv);
  set.group("Sparse attention (docs/policies.md)");
  declare_sparse(set, &engine->sparse);
  set.group("Speculation (docs/speculation.md)");
  add_options(set, kSpeculativeRows, &engine->speculative);
  set.group("KV offload");
  add_options(set, kKvOffloadRows, &engine->kv);
}

void declare_kept(OptionSet& set, EngineOptions* engine) {
  set.group("KV store (docs/kv_store.md)");
  add_options(set, kKvStoreRows, &engine->kv_store);
  set.group("States of hybrid models (docs/models.md)");
  add_options(set, kStateCacheRows, &engine->state_cache);
}

void declare_events(OptionSet& set, EngineOptions* engine) {
  set.group("KV events for routers (docs/kv_events.md)");
  add_options(set, kKvEventsRows, &engine->kv_events);
}

void declare_gpu_lock(OptionSet& set, bool* gpu_lock) {
  set.set_flag("--gpu-lock", "wait until no other holder of this lock uses the GPU, then hold it",
               gpu_lock);
}

void declare_timeline(OptionSet& set, EngineOptions* engine) {
  add_option(set, kTimelineRow, engine);
}

void declare_seed(OptionSet& set, EngineOptions* engine) { add_option(set, kSeedRow, engine); }

void declare_policies(OptionSet& set, std::string help, std::vector<std::string>* policies) {
  if (!policies->empty()) help += fmt::format(" ({})", fmt::join(*policies, ","));
  set.value("--policies", "LIST", std::move(help),
            [=](std::string_view source, std::string_view value) {
              *policies = split_list(source, value);
            });
}

void declare_model_word(OptionSet& set, EngineOptions* engine) {
  set.positional_for(
      long_option(kModelRow.facts), "MODEL",
      "a model directory, or ORG/NAME of the Hugging Face cache, as --model",
      [=](std::string_view, std::string_view value) { engine->model = std::string(value); });
}

}  // namespace sluice::cli
