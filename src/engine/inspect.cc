// Implements sluice/inspect.h: the summary of a model and its memory plan.
#include "sluice/inspect.h"

#include <fmt/format.h>

#include "device/device.h"
#include "device/host/host_memory.h"
#include "engine/plan/engine_plan.h"
#include "engine/plan/model_check.h"
#include "engine/plan/weight_kernels.h"
#include "io/model_directory.h"
#include "kv/kv_layout.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace sluice {
namespace {

// "theta 1e+06, yarn factor 4 over 32768".
std::string describe_rope(const RopeConfig& rope) {
  std::string text = fmt::format("theta {:g}", rope.theta);
  if (rope.type == RopeType::kDefault) return text;
  if (rope.type == RopeType::kDivisors) {
    return text + fmt::format(", divisors up to {:g}", rope.factor);
  }
  text += fmt::format(", {} factor {:g}", rope_type_name(rope.type), rope.factor);
  if (rope.original_max_positions > 0) text += fmt::format(" over {}", rope.original_max_positions);
  return text;
}

// The embedding stays in bf16, and so does `lm_head` but for that of a GGUF file.
std::string describe_formats(const ModelConfig& config) {
  if (config.quantization.has_gguf()) return "blocks of 4 and 8 bits, others bf16";
  if (!config.quantization.present()) return "bf16";
  const WeightNumbers numbers = config.quantization.has_integers()
                                    ? config.quantization.integer_format.numbers
                                    : WeightNumbers::kE4m3;
  const char* name = numbers == WeightNumbers::kE4m3    ? "FP8"
                     : numbers == WeightNumbers::kUint4 ? "integers of 4 bits"
                                                        : "integers of 8 bits";
  return std::string(name) + ", others bf16";
}

// A GPU that is not here: a kind and a size, for a plan, which takes no memory.
class AbsentGpu final : public Device {
 public:
  explicit AbsentGpu(size_t num_bytes) : num_bytes_(num_bytes) {}

  // Rules of the plan differ by the kind alone.
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  DeviceInfo info() const override {
    return {.name = "a GPU that is not here",
            .total_memory_bytes = num_bytes_,
            .free_memory_bytes = num_bytes_,
            // No plan for a GPU depends on it.
            .num_cores = 1};
  }
  std::unique_ptr<Stream> make_stream(const StreamOptions&) override { refuse(); }
  std::unique_ptr<Event> make_event() override { refuse(); }
  using Device::allocate;
  Buffer allocate(size_t, MemoryKind, const AllocationProgress&) override { refuse(); }
  int64_t num_allocations() const override { return 0; }
  size_t allocated_bytes(MemoryKind) const override { return 0; }
  size_t peak_allocated_bytes(MemoryKind) const override { return 0; }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorCode::kUnsupported, "a GPU that is not here only takes part in plans");
  }
  void deallocate(std::byte*, size_t, MemoryKind) noexcept override {}

  const size_t num_bytes_;
};

}  // namespace

ModelSummary summarize_model(const std::string& model_dir, KvCacheDtype kv_cache_dtype) {
  EngineOptions options;
  options.model = model_dir;
  const ModelConfig config = read_config_for_weights(options, ModelDirectory(model_dir));
  ModelSummary summary;
  summary.architecture = architecture_name(config.architecture);
  summary.num_parameters = config.num_parameters();
  summary.num_active_parameters = config.num_active_parameters();
  const Weights::StoredBytes bytes = Weights::stored_bytes(config, *make_device("cpu"));
  summary.weight_bytes = bytes.all;
  summary.active_weight_bytes = bytes.active;
  summary.weight_formats = describe_formats(config);
  summary.num_layers = config.num_layers();
  summary.num_kv_layers = config.num_kv_layers();
  summary.hidden_size = config.hidden_size;
  summary.num_q_heads = config.attention().num_q_heads;
  summary.num_kv_heads = config.attention().num_kv_heads;
  summary.head_dim = config.attention().head_dim;
  summary.vocab_size = config.vocab_size;
  summary.max_position_embeddings = max_positions(config);
  summary.rope = describe_rope(config.rope);
  summary.tied_embeddings = config.tie_word_embeddings;
  summary.kv_bytes_per_token = config.kv_bytes_per_token(kv_element_of(kv_cache_dtype));
  summary.state_bytes = config.states().slot_bytes();
  return summary;
}

MemoryPlan plan_memory(const EngineOptions& options) {
  DeviceOptions device_options;
  device_options.num_threads = options.num_threads.value_or(0);
  const std::unique_ptr<Device> device = make_device(options.device, device_options);
  ModelConfig config = read_config_for_weights(options, ModelDirectory(options.model));
  adapt_to_device(config, *device);
  return make_engine_plan(options, config, *device, *make_policies(options)).memory;
}

// Nothing is taken and no GPU is opened: all sizes follow from the configuration and the two
// numbers.
MemoryPlan plan_memory(const EngineOptions& options, const PlannedMachine& machine) {
  EngineOptions elsewhere = options;
  elsewhere.device = "cpu";  // whose profile is none: that of a GPU here would say nothing
  // Sizes of kernels are known in every build (ops/cuda/op_memory.h).
  AbsentGpu device(machine.gpu_bytes);
  const HostMemory host{.total_bytes = machine.host_bytes, .available_bytes = machine.host_bytes};
  ModelConfig config = read_config_for_weights(options, ModelDirectory(options.model));
  adapt_to_device(config, device);
  return make_engine_plan(elsewhere, config, device, *make_policies(elsewhere), host).memory;
}

}  // namespace sluice
