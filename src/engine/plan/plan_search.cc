// Search by trial: one plan takes microseconds, and a search makes some dozens.
#include "engine/plan/plan_search.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "engine/plan/memory_fit.h"
#include "engine/plan/validate_options.h"

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// In order of speed, fastest first.
constexpr KvOffload kModesToTry[] = {KvOffload::kOff, KvOffload::kLayerwise, KvOffload::kChunked};

// One option with another value that makes a plan fit.
struct Remedy {
  const char* option;  // with dashes, as on the command line
  std::string value;
};

// A size in the command line's syntax; in whole MiB from 1 MiB on, so that the text is short.
std::string size_text(size_t bytes) {
  return bytes >= kMiB ? fmt::format("{}M", bytes / kMiB) : fmt::format("{}", bytes);
}
size_t round_down(size_t bytes) { return bytes >= kMiB ? bytes / kMiB * kMiB : bytes; }
size_t round_up(size_t bytes) { return (bytes + kMiB - 1) / kMiB * kMiB; }

// Searches for one option whose change alone makes the plan fit. Options that were given come
// first, since they caused the shortage; then the others, from the least to the most costly for the
// user.
class RemedySearch {
 public:
  RemedySearch(const EngineOptions& options, const EnginePlan& plan, const MakePlan& make)
      : options_(options), plan_(plan), make_(make) {}

  std::optional<Remedy> find() const {
    for (const bool given : {true, false}) {
      if (auto remedy = try_sizes(given)) return remedy;
      if (auto remedy = try_counts(given)) return remedy;
    }
    if (auto remedy = try_modes()) return remedy;
    return try_lengths();
  }

 private:
  // The plan of the changed options if it fits. Empty also if the change contradicts another
  // option.
  std::optional<EnginePlan> plan_of(const EngineOptions& changed) const {
    try {
      validate_options(changed);
      EnginePlan plan = make_(changed);
      if (plan.memory.fits) return plan;
    } catch (const Error&) {
      // Contradictory options: this change is no remedy.
    }
    return std::nullopt;
  }

  // The largest of start, start / 2, ..., at least `least`, that fits. `set` writes it into
  // options.
  template <typename Set>
  std::optional<Remedy> halve(const char* option, int64_t start, int64_t least, Set set) const {
    for (int64_t value = start; value >= least; value /= 2) {
      EngineOptions changed = options_;
      set(changed, value);
      if (plan_of(changed)) return Remedy{option, fmt::format("{}", value)};
    }
    return std::nullopt;
  }

  // A size of the KV cache or of the host tier that fits: first the most there is room for, then
  // just enough for one request of max_model_len.
  std::optional<Remedy> try_kv_bytes(const char* option,
                                     std::optional<size_t> KvOptions::*bytes) const {
    EngineOptions changed = options_;
    (changed.kv.*bytes).reset();
    std::vector<size_t> values;
    const size_t block_bytes = plan_.kv_layout.block_bytes_all_layers();
    const int64_t tokens = options_.max_model_len.value_or(1);
    values.push_back(round_up(block_bytes * static_cast<size_t>(blocks_for_tokens(
                                                tokens, plan_.kv_layout.block.block_tokens))));
    if (const auto plan = plan_of(changed)) {
      // The size that the plan takes by itself if the option is left out.
      values.insert(values.begin(),
                    round_down(static_cast<size_t>(plan->num_blocks) * block_bytes));
    }
    for (const size_t value : values) {
      changed.kv.*bytes = value;
      if (plan_of(changed)) return Remedy{option, size_text(value)};
    }
    return std::nullopt;
  }

  // Sizes in bytes that are given (or, with false, left to defaults). Blocks that stay on the
  // device are dropped only if their size was given; the default already takes only what is left.
  std::optional<Remedy> try_sizes(bool given) const {
    std::optional<Remedy> remedy;
    const bool kv_given = options_.kv.cache_bytes.has_value();
    if (!offloads(plan_) && kv_given == given) {
      remedy = try_kv_bytes("--kv-cache-bytes", &KvOptions::cache_bytes);
    }
    const bool host_given = options_.kv.host_bytes.has_value();
    if (!remedy && offloads(plan_) && host_given == given) {
      remedy = try_kv_bytes("--kv-host-bytes", &KvOptions::host_bytes);
    }
    if (!remedy && given && options_.kv.device_bytes.value_or(0) > 0) {
      EngineOptions changed = options_;
      changed.kv.device_bytes = 0;
      if (plan_of(changed)) remedy = Remedy{"--kv-device-bytes", "0"};
    }
    return remedy;
  }

  // Counts that scale memory: sequences, ring, rows of a pass, tokens of a block.
  std::optional<Remedy> try_counts(bool given) const {
    std::optional<Remedy> remedy;
    if (options_.max_num_seqs.has_value() == given) {
      remedy = halve("--max-num-seqs", max_num_seqs(options_) / 2, 1,
                     [](EngineOptions& o, int64_t v) { o.max_num_seqs = static_cast<int32_t>(v); });
    }
    if (!remedy && offloads(plan_)) remedy = try_ring(given);
    if (!remedy && options_.max_num_batched_tokens.has_value() == given) {
      remedy = halve(
          "--max-num-batched-tokens", plan_.passes.scheduler.max_num_batched_tokens / 2, 16,
          [](EngineOptions& o, int64_t v) { o.max_num_batched_tokens = static_cast<int32_t>(v); });
    }
    if (!remedy && options_.kv.block_size.has_value() == given) {
      remedy =
          halve("--block-size", plan_.memory.block_size / 2, 16,
                [](EngineOptions& o, int64_t v) { o.kv.block_size = static_cast<int32_t>(v); });
    }
    return remedy;
  }

  // Smaller or fewer ring slots; two are the fewest that overlap loads with compute.
  std::optional<Remedy> try_ring(bool given) const {
    std::optional<Remedy> remedy;
    if (options_.kv.slot_blocks.has_value() == given) {
      remedy =
          halve("--kv-slot-blocks", plan_.offloaded.sizes.slot_blocks / 2, 1,
                [](EngineOptions& o, int64_t v) { o.kv.slot_blocks = static_cast<int32_t>(v); });
    }
    if (!remedy && options_.kv.num_slots.has_value() == given) {
      remedy = halve("--num-kv-slots", plan_.offloaded.sizes.num_slots / 2, kMinKvSlots,
                     [](EngineOptions& o, int64_t v) { o.kv.num_slots = static_cast<int32_t>(v); });
    }
    return remedy;
  }

  // Another offload mode, experts in host memory, else a larger share of the device's memory.
  std::optional<Remedy> try_modes() const {
    for (const KvOffload mode : kModesToTry) {
      EngineOptions changed = options_;
      changed.kv.offload = mode;
      if (mode != options_.kv.offload && plan_of(changed)) {
        return Remedy{"--kv-offload", kv_offload_name(mode)};
      }
    }
    if (options_.weights_offload != WeightsOffload::kExperts) {
      EngineOptions changed = options_;
      changed.weights_offload = WeightsOffload::kExperts;
      if (plan_of(changed)) return Remedy{"--weights-offload", "experts"};
    }
    for (const double share : {0.95, 0.98}) {
      EngineOptions changed = options_;
      changed.gpu_memory_utilization = share;
      if (share > options_.gpu_memory_utilization && plan_of(changed)) {
        return Remedy{"--gpu-memory-utilization", fmt::format("{}", share)};
      }
    }
    return std::nullopt;
  }

  // Shorter requests, the last resort.
  std::optional<Remedy> try_lengths() const {
    EngineOptions changed = options_;
    changed.max_model_len.reset();
    const auto plan = plan_of(changed);  // without the option the length follows from the memory
    if (plan && options_.max_model_len.value_or(0) > plan->max_model_len) {
      return Remedy{"--max-model-len", fmt::format("{}", plan->max_model_len)};
    }
    return halve("--max-model-len", plan_.max_model_len / 2, 16,
                 [](EngineOptions& o, int64_t v) { o.max_model_len = v; });
  }

  const EngineOptions& options_;
  const EnginePlan& plan_;
  const MakePlan& make_;
};

// Appends the option that would be enough, or that none is, to the reason in memory.remedy.
void add_remedy(const EngineOptions& options, const MakePlan& make, EnginePlan& plan) {
  if (plan.memory.fits) return;
  const std::optional<Remedy> remedy = RemedySearch(options, plan, make).find();
  plan.memory.remedy +=
      remedy ? fmt::format("; {} {} would be enough", remedy->option, remedy->value)
             : fmt::format("; no single option is enough: take a smaller model, or {}",
                           plan.memory.host_is_limited ? "raise the container's memory limit"
                                                       : "a machine with more memory");
}

// Values of max_num_seqs that "auto" tries: the given one alone, else the default and fewer.
std::vector<int32_t> counts_to_try(const EngineOptions& options, const SearchGoal& goal) {
  std::vector<int32_t> counts{max_num_seqs(options)};
  if (goal.num_seqs_is_given) return counts;
  for (const int32_t count : {64, 16, 4, 1}) {
    if (count < counts.front()) counts.push_back(count);
  }
  return counts;
}

// Layer-wise prefill takes whole prompts, which contradicts a chunk or a pause that was given.
bool allows(const EngineOptions& options, KvOffload mode) {
  return mode != KvOffload::kLayerwise ||
         (!options.prefill_chunk_tokens && options.max_stall_ms == 0);
}

// The best plan that "auto" has found so far.
struct Choice {
  std::optional<EnginePlan> plan;
  int32_t num_seqs = 0;
  std::optional<EnginePlan> resident;  // the first plan tried: no offload, all sequences
};

// True if `plan` replaces the choice: it fits and reaches the requested length, or is longer by
// more than 1/8. A smaller gain is not worth fewer sequences or a slower mode.
bool is_better(const EnginePlan& plan, const Choice& choice, int64_t asked_len) {
  if (!plan.memory.fits) return false;
  if (!choice.plan || plan.max_model_len == asked_len) return true;
  const int64_t so_far = choice.plan->max_model_len;
  return plan.max_model_len > so_far + so_far / 8;
}

// Tries modes for each number of sequences, most sequences and fastest mode first; returns at once
// when a plan reaches the requested length.
Choice choose(const EngineOptions& options, const SearchGoal& goal, const MakePlan& make) {
  Choice choice;
  for (const int32_t num_seqs : counts_to_try(options, goal)) {
    for (const KvOffload mode : kModesToTry) {
      if (!allows(options, mode)) continue;
      EngineOptions changed = options;
      changed.max_num_seqs = num_seqs;
      changed.kv.offload = mode;
      EnginePlan plan = make(changed);
      if (!choice.resident) choice.resident = plan;
      if (!is_better(plan, choice, goal.max_model_len)) continue;
      choice.plan = std::move(plan);
      choice.num_seqs = num_seqs;
      if (choice.plan->max_model_len == goal.max_model_len) return choice;
    }
  }
  return choice;
}

// One clause that explains the mode, by comparison with the resident plan for all sequences.
std::string reason(const EngineOptions& options, const EnginePlan& plan, const EnginePlan& resident,
                   int64_t asked_len) {
  if (!offloads(plan)) {
    return plan.max_model_len == asked_len ? "all KV fits on the device"
                                           : "no mode has room for longer requests";
  }
  const std::string holds =
      fmt::format("the device has room for the KV of {} tokens, not of {}",
                  int64_t{resident.num_blocks} * resident.kv_layout.block.block_tokens, asked_len);
  if (plan.kv_offload == KvOffload::kLayerwise) {
    return holds + "; the activations of a whole prompt fit";
  }
  return allows(options, KvOffload::kLayerwise)
             ? holds + ", nor for the activations of a whole prompt"
             : holds + "; prompts are computed in chunks, as " +
                   (options.prefill_chunk_tokens ? "prefill_chunk_tokens" : "max_stall_ms") +
                   " asks";
}

// The chosen plan with notes on the choice. If nothing fits: the smallest plan, chunked with the
// fewest sequences, and its remedy.
EnginePlan plan_auto(const EngineOptions& options, const SearchGoal& goal, const MakePlan& make) {
  Choice choice = choose(options, goal, make);
  if (!choice.plan) {
    EngineOptions chunked = options;
    chunked.kv.offload = KvOffload::kChunked;
    chunked.max_num_seqs = counts_to_try(options, goal).back();
    EnginePlan plan = make(chunked);
    add_remedy(chunked, make, plan);
    return plan;
  }
  EnginePlan& plan = *choice.plan;
  // Offload is slower, and the user has not requested it: a warning instead of a note.
  std::vector<std::string>& lines = offloads(plan) ? plan.memory.warnings : plan.memory.notes;
  lines.push_back(fmt::format("kv_offload is {}: {}", kv_offload_name(plan.kv_offload),
                              reason(options, plan, *choice.resident, goal.max_model_len)));
  if (choice.num_seqs != max_num_seqs(options)) {
    plan.memory.notes.push_back(
        fmt::format("max_num_seqs is {} instead of {}: more sequences at once leave no room for "
                    "requests of {} tokens",
                    choice.num_seqs, max_num_seqs(options), plan.max_model_len));
  }
  return plan;
}

}  // namespace

EnginePlan search_plan(const EngineOptions& options, const SearchGoal& goal, const MakePlan& make) {
  if (options.kv.offload == KvOffload::kAuto) return plan_auto(options, goal, make);
  EnginePlan plan = make(options);
  add_remedy(options, make, plan);
  return plan;
}

EnginePlan search_with_experts(const EngineOptions& options, const SearchGoal& goal,
                               const MakePlan& make) {
  EnginePlan plan = search_plan(options, goal, make);
  const bool is_auto = options.weights_offload == WeightsOffload::kAuto;
  if (plan.memory.fits && is_auto && options.experts_device_bytes) {
    plan.memory.warnings.emplace_back(
        "experts_device_bytes: no effect, since all experts fit on the device and "
        "--weights-offload auto left them there; --weights-offload experts uses it");
  }
  if (plan.memory.fits || !is_auto) return plan;
  EngineOptions changed = options;
  changed.weights_offload = WeightsOffload::kExperts;
  EnginePlan offloaded = search_plan(changed, goal, make);
  if (!offloaded.memory.fits || !offloaded.experts.on_host()) return plan;
  offloaded.memory.warnings.emplace_back(
      "weights_offload is experts: they do not fit the device beside all else");
  return offloaded;
}

}  // namespace sluice
