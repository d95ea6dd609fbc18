// Options that several commands share, each declared once.
//
// Used by command_options.cc and bench_options.cc. Thread rule: main thread, before other threads
// start.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cli/options/option_set.h"
#include "sluice/engine_options.h"

namespace sluice::cli {

// Upper limits of options whose field is an int32, and of token counts.
inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxTokens = int64_t{1} << 30;

// All of EngineOptions except timeline, seed, and what is kept for later requests (the KV store and
// states of hybrids) or told to others, which only some commands have.
void declare_engine(OptionSet& set, EngineOptions* engine);
void declare_kept(OptionSet& set, EngineOptions* engine);
// What a server tells routers.
void declare_events(OptionSet& set, EngineOptions* engine);
void declare_timeline(OptionSet& set, EngineOptions* engine);
// --seed: of dummy weights, of sampling without a seed of its own, of random prompts and needles.
void declare_seed(OptionSet& set, EngineOptions* engine);

// --policies: a list of names that each stand for a configuration (cli/policy_list.h).
void declare_policies(OptionSet& set, std::string help, std::vector<std::string>* policies);

// Accepts the model as a word, instead of --model.
void declare_model_word(OptionSet& set, EngineOptions* engine);

// Adds --gpu-lock (cli/gpu/gpu_lock.h), for commands that run for a while.
void declare_gpu_lock(OptionSet& set, bool* gpu_lock);

}  // namespace sluice::cli
