// Loading an engine for a command: progress while it loads, Ctrl-C, and what to say of errors.
//
// Used by run, needle and bench. Thread rule: main thread.
#pragma once

#include <memory>
#include <string>

#include "cli/gpu_lock.h"
#include "engine/llm_engine.h"
#include "sluice/llm.h"

namespace sluice::cli {

// Loads the model, prints its warnings and, with `verbose`, what was chosen.
// Errors: those of LLM's constructor. Interrupted when Ctrl-C comes while loading.
LLM load_llm(const EngineOptions& options, bool verbose);

// The engine under an LLM, with policies of the caller's that stand for the options' own; prints
// its warnings.
// Errors: as load_llm.
std::unique_ptr<LlmEngine> load_engine(const EngineOptions& options,
                                       std::unique_ptr<PolicyPair> policies);

// Writes the timeline and says where, if one was asked for. Errors: those of LLM::write_timeline.
void write_timeline(LLM& llm, const EngineOptions& options);

// The lock of the GPU that `device` names, waited for with a message; null where `device` is no
// GPU. Errors: those of GpuLock.
std::unique_ptr<GpuLock> lock_gpu(const std::string& device);

// "AMD EPYC 7713, 2 threads": the machine line of every result.
std::string machine_name(const EngineOptions& options);

// The last part of a model directory's path, for titles.
std::string model_name(const std::string& model_dir);

}  // namespace sluice::cli
