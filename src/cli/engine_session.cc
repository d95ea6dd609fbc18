// Loads engines with a progress line, and names machines and models in results.
#include "cli/engine_session.h"

#include <filesystem>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "device/cpu/cpu_features.h"
#include "device/device.h"

namespace sluice::cli {
namespace {

// "pinning 12.0 of 56.0 GiB". Empty for weights, since the line's task "loading" already says it.
std::string describe_stage(const LoadProgress& progress) {
  if (progress.stage == LoadProgress::Stage::kTokenizer) {
    return progress.share < 1 ? "reading the tokenizer" : "taking memory";
  }
  if (progress.stage != LoadProgress::Stage::kPinning) return "";
  const double total_gib = static_cast<double>(progress.total_bytes) / (1 << 30);
  return fmt::format("pinning {:.1f} of {:.1f} GiB", progress.share * total_gib, total_gib);
}

void write_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) write_message(note);
}

// Returns make(on_progress), with a progress line while it runs. Errors: Interrupted if Ctrl-C came
// before it returned.
template <typename Make>
auto load(const EngineOptions& options, const Make& make) {
  ProgressLine progress("loading " + model_name(options.model));
  const auto on_progress = [&](const LoadProgress& loading) {
    if (interrupted()) throw Interrupted();
    // The tokenizer is read in one call, so it has no share.
    const bool has_share = loading.stage != LoadProgress::Stage::kTokenizer;
    progress.update(has_share ? loading.share : 0, describe_stage(loading));
  };
  auto made = make(on_progress);
  progress.clear();
  if (interrupted()) throw Interrupted();
  return made;
}

}  // namespace

// A benchmark loads the same engine several times.
void show_warnings(const std::vector<std::string>& warnings,
                   const std::function<void(const std::string&)>& print) {
  static std::set<std::string> said;  // per process, since standard error is shared
  for (const std::string& warning : warnings) {
    if (!said.insert(warning).second) continue;
    print ? print(warning) : write_message("sluice: warning: " + warning);
  }
}

LLM load_llm(const EngineOptions& options, bool verbose) {
  LLM llm = load(options, [&](const auto& on_progress) { return LLM(options, on_progress); });
  show_warnings(llm.warnings());
  if (verbose) write_notes(llm.notes());
  return llm;
}

std::unique_ptr<EngineService> load_service(
    const EngineOptions& options, const ServiceLimits& limits, bool verbose,
    const std::function<void(const LoadProgress&)>& on_load) {
  auto service = load(options, [&](const auto& on_progress) {
    return std::make_unique<EngineService>(options, limits, [&](const LoadProgress& progress) {
      on_load(progress);
      on_progress(progress);
    });
  });
  show_warnings(service->warnings());
  if (verbose) write_notes(service->notes());
  return service;
}

std::unique_ptr<LlmEngine> load_engine(const EngineOptions& options,
                                       std::unique_ptr<PolicyPair> policies) {
  LlmEngine::Parts parts;
  parts.policies = std::move(policies);
  return load_engine(options, std::move(parts));
}

std::unique_ptr<LlmEngine> load_engine(const EngineOptions& options, LlmEngine::Parts parts) {
  std::unique_ptr<LlmEngine> engine = load(options, [&](const auto& on_progress) {
    parts.device = make_device(options.device, {.num_threads = options.num_threads.value_or(0)});
    return std::make_unique<LlmEngine>(options, std::move(parts), on_progress);
  });
  show_warnings(engine->reports().warnings());
  return engine;
}

void write_timeline(LLM& llm, const EngineOptions& options) {
  if (!options.timeline_path) return;
  llm.write_timeline();
  write_message("timeline: " + *options.timeline_path);
}

std::unique_ptr<GpuLock> lock_gpu(const std::string& device) {
  const std::string id = gpu_id(device);
  if (id.empty()) return nullptr;
  const auto on_wait = [&](const std::string& holder) {
    write_message(fmt::format("waiting for {}: {} has its lock", id, holder));
  };
  return std::make_unique<GpuLock>(gpu_lock_path(id), on_wait, interrupted);
}

std::string machine_name(const EngineOptions& options) {
  // One thread: the device is made only to ask for its kind and name.
  const std::unique_ptr<Device> device = make_device(options.device, {.num_threads = 1});
  if (device->kind() != DeviceKind::kCpu) return device->info().name;
  const int machine_threads = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = options.num_threads.value_or(machine_threads);
  return fmt::format("{} ({}), {} thread{}", cpu_brand_name(), cpu_isa_name(best_isa()), threads,
                     threads == 1 ? "" : "s");
}

std::string model_name(const std::string& model_dir) {
  std::filesystem::path path = std::filesystem::path(model_dir).lexically_normal();
  // "models/needle/" has an empty last part.
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

}  // namespace sluice::cli
