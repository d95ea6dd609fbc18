// One table of names.
#include "model/architecture.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "model/config_limits.h"

namespace sluice {
namespace {

// A family's names. Hybrids of 3.5 and later also have those of the text part alone.
struct Family {
  Architecture architecture;
  std::string_view name;
  std::string_view model_type;
  std::string_view text_name = {};
  std::string_view text_model_type = {};
};

constexpr Family kFamilies[] = {{Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
                                {Architecture::kQwen2, "Qwen2ForCausalLM", "qwen2"},
                                {Architecture::kLlama, "LlamaForCausalLM", "llama"},
                                {Architecture::kQwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe"},
                                {Architecture::kQwen2Moe, "Qwen2MoeForCausalLM", "qwen2_moe"},
                                {Architecture::kMixtral, "MixtralForCausalLM", "mixtral"},
                                {Architecture::kQwen35, "Qwen3_5ForConditionalGeneration",
                                 "qwen3_5", "Qwen3_5ForCausalLM", "qwen3_5_text"},
                                {Architecture::kQwen35Moe, "Qwen3_5MoeForConditionalGeneration",
                                 "qwen3_5_moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"},
                                {Architecture::kQwen3Next, "Qwen3NextForCausalLM", "qwen3_next"}};

constexpr std::string_view kSupported =
    "Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM, Qwen3MoeForCausalLM, "
    "Qwen2MoeForCausalLM, MixtralForCausalLM, Qwen3_5ForConditionalGeneration, "
    "Qwen3_5MoeForConditionalGeneration and Qwen3NextForCausalLM";

}  // namespace

std::string_view architecture_name(Architecture architecture) {
  const auto* family = std::ranges::find(kFamilies, architecture, &Family::architecture);
  return family != std::end(kFamilies) ? family->name : "?";
}

bool has_experts(Architecture architecture) {
  constexpr std::array kWithExperts = {Architecture::kQwen3Moe, Architecture::kQwen2Moe,
                                       Architecture::kMixtral, Architecture::kQwen35Moe,
                                       Architecture::kQwen3Next};
  return std::ranges::find(kWithExperts, architecture) != kWithExperts.end();
}

bool is_hybrid(Architecture architecture) {
  return architecture == Architecture::kQwen35 || architecture == Architecture::kQwen35Moe ||
         architecture == Architecture::kQwen3Next;
}

// `architectures` decides. A file that names several was made for several programs, and which of
// them the weights belong to cannot be told from it.
Architecture read_architecture(const JsonObject& config) {
  const std::vector<std::string> names = config.find_strings("architectures");
  const std::string model_type = config.find_string("model_type").value_or("");
  for (const Family& family : kFamilies) {
    if (names.size() == 1 && (names[0] == family.name || names[0] == family.text_name)) {
      return family.architecture;
    }
    // Files without `architectures` still name the family.
    const bool is_named = !model_type.empty() &&
                          (model_type == family.model_type || model_type == family.text_model_type);
    if (names.empty() && is_named) return family.architecture;
  }
  if (names.size() > 1) {
    fail_unsupported(config, fmt::format("architectures names {}, {} first; keep the one that the "
                                         "weights are of",
                                         names.size(), describe_json(names[0])));
  }
  const std::string found = names.empty() ? fmt::format("model_type {}", describe_json(model_type))
                                          : fmt::format("architecture {}", describe_json(names[0]));
  fail_unsupported(config, fmt::format("{} is not supported; {} are", found, kSupported));
}

}  // namespace sluice
