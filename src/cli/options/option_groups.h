// Options that several commands share, each declared once.
//
// Used by options.cc and bench_options.cc. Thread rule: main thread, before
// anything starts.
#pragma once

#include <cstdint>
#include <limits>

#include "cli/options/option_set.h"
#include "sluice/engine_options.h"

namespace sluice::cli {

inline constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxTokens = int64_t{1} << 30;

// Everything of EngineOptions but timeline and seed.
void declare_engine(OptionSet& set, EngineOptions* engine);
void declare_timeline(OptionSet& set, EngineOptions* engine);
void declare_seed(OptionSet& set, EngineOptions* engine);

// Takes the model directory as a word as well as by --model.
void declare_model_word(OptionSet& set, EngineOptions* engine);

// For commands that work for longer than a moment.
void declare_gpu_lock(OptionSet& set, bool* gpu_lock);

}  // namespace sluice::cli
