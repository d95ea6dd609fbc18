// Loads an engine for a command, with a progress line and Ctrl-C; names the machine and the model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/gpu/gpu_lock.h"
#include "engine/llm_engine.h"
#include "service/engine_service.h"
#include "sluice/llm.h"

namespace sluice::cli {

// Loads the model and prints its warnings; with `verbose` also its notes on what was chosen.
// Errors: those of LLM's constructor; Interrupted on Ctrl-C.
LLM load_llm(const EngineOptions& options, bool verbose);

// Prints each warning once per process, however often it is shown. `print` gets those that are new;
// without it they are messages that name the program.
void show_warnings(const std::vector<std::string>& warnings,
                   const std::function<void(const std::string&)>& print = {});

// Loads an engine below LLM, with `policies` instead of those that the options name; prints its
// warnings. For measurements that read a policy's state.
std::unique_ptr<LlmEngine> load_engine(const EngineOptions& options,
                                       std::unique_ptr<PolicyPair> policies);
// The same with any of the engine's parts but the device, which the options name.
std::unique_ptr<LlmEngine> load_engine(const EngineOptions& options, LlmEngine::Parts parts);

// Starts the service of a server; `on_load` also gets the progress. Prints as load_llm.
// Errors: those of EngineService's constructor; Interrupted on Ctrl-C.
std::unique_ptr<EngineService> load_service(
    const EngineOptions& options, const ServiceLimits& limits, bool verbose,
    const std::function<void(const LoadProgress&)>& on_load);

// Writes the timeline and prints its path, if --timeline was given. Errors: those of
// LLM::write_timeline.
void write_timeline(LLM& llm, const EngineOptions& options);

// Takes the lock of the GPU that `device` names; prints a message if it has to wait. Null if
// `device` is no GPU. Errors: those of GpuLock.
std::unique_ptr<GpuLock> lock_gpu(const std::string& device);

// "AMD EPYC 7713, 2 threads": the machine line of every result.
std::string machine_name(const EngineOptions& options);

// The last part of a model directory's path, for titles.
std::string model_name(const std::string& model_dir);

}  // namespace sluice::cli
