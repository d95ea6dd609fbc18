// Writes config.json anew from the metadata, so that one reader checks both forms.
#include "model/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"
#include "io/gguf/gguf_weights.h"
#include "io/json_type.h"
#include "model/config_limits.h"
#include "model/gguf/gguf_formats.h"
#include "model/gguf/gguf_layers.h"
#include "model/gguf/gguf_metadata.h"

namespace sluice {
namespace {

using nlohmann::json;

// Keys after the architecture's name that are read, or that mean nothing here.
constexpr std::string_view kKnownKeys[] = {"attention.head_count",
                                           "attention.head_count_kv",
                                           "attention.key_length",
                                           "attention.layer_norm_rms_epsilon",
                                           "attention.sliding_window",
                                           "attention.value_length",
                                           "block_count",
                                           "context_length",
                                           "embedding_length",
                                           "expert_count",
                                           "expert_feed_forward_length",
                                           "expert_gating_func",
                                           "expert_group_count",
                                           "expert_group_used_count",
                                           "expert_shared_count",
                                           "expert_shared_feed_forward_length",
                                           "expert_used_count",
                                           "expert_weights_norm",
                                           "expert_weights_scale",
                                           "feed_forward_length",
                                           "rope.dimension_count",
                                           "rope.freq_base",
                                           "rope.scale_linear",
                                           "rope.scaling.factor",
                                           "rope.scaling.finetuned",
                                           "rope.scaling.original_context_length",
                                           "rope.scaling.type",
                                           "rope.scaling.yarn_beta_fast",
                                           "rope.scaling.yarn_beta_slow",
                                           "tensor_data_layout",
                                           "vocab_size"};
// The same of hybrids; Ollama writes those of "mrope" beside llama.cpp's sections. What begins with
// "vision." is of the part that is not run.
constexpr std::string_view kHybridKeys[] = {"attention.recurrent_layers",
                                            "full_attention_interval",
                                            "image_token_id",
                                            "mrope_sections",
                                            "nextn_predict_layers",
                                            "norm_top_k_prob",
                                            "rope.dimension_sections",
                                            "rope.mrope_interleaved",
                                            "rope.mrope_section",
                                            "ssm.conv_kernel",
                                            "ssm.group_count",
                                            "ssm.inner_size",
                                            "ssm.state_size",
                                            "ssm.time_step_rank",
                                            "ssm.v_head_reordered",
                                            "vision_end_token_id",
                                            "vision_start_token_id"};
// Keys whose presence changes results.
constexpr std::string_view kRefusedKeys[] = {"attention.clamp_kqv",
                                             "attention.scale",
                                             "attention.temperature_length",
                                             "attention.temperature_scale",
                                             "attn_logit_softcapping",
                                             "embedding_scale",
                                             "final_logit_softcapping",
                                             "logit_scale",
                                             "residual_scale",
                                             "use_parallel_residual"};

bool is_hybrid_key(std::string_view name) {
  return name.starts_with("vision.") ||
         std::ranges::find(kHybridKeys, name) != std::end(kHybridKeys);
}

// The name of the same model in config.json.
std::string_view hf_architecture(const GgufMetadata& metadata) {
  struct Pair {
    std::string_view gguf;
    std::string_view hf;
  };
  constexpr Pair kPairs[] = {
      {"llama", "LlamaForCausalLM"},       {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"},       {"qwen2moe", "Qwen2MoeForCausalLM"},
      {"qwen3moe", "Qwen3MoeForCausalLM"}, {"qwen3next", "Qwen3NextForCausalLM"},
      {"qwen35", "Qwen3_5ForCausalLM"},    {"qwen35moe", "Qwen3_5MoeForCausalLM"}};
  if (metadata.architecture() == "llama" && metadata.has_experts()) return "MixtralForCausalLM";
  const auto* found = std::ranges::find(kPairs, metadata.architecture(), &Pair::gguf);
  SLUICE_CHECK(found != std::end(kPairs), "architecture {}", metadata.architecture());
  return found->hf;
}

class GgufConfig {
 public:
  explicit GgufConfig(const std::filesystem::path& path) : metadata_(path) {}

  // The refusals come first: what is not supported is named by its key before a size that follows
  // from it seems wrong.
  ModelConfig read() {
    refuse_unsupported();
    const std::string text = document().dump();
    ModelConfig model = parse_model_config({.config = text, .config_name = first().name()});
    read_rope_divisors(model);
    set_gguf_row_order(metadata_, model);
    set_gguf_formats(metadata_, model);
    warn_of_unknown_keys(model.warnings);
    return model;
  }

 private:
  const GgufFile& first() const { return metadata_.first(); }
  std::string key(std::string_view name) const { return metadata_.key(name); }
  int64_t size(std::string_view name, int64_t max) const { return metadata_.size(name, max); }
  [[noreturn]] void refuse(std::string_view name, std::string_view why) const {
    metadata_.refuse(name, why);
  }

  // What would change every result and has no counterpart in Sluice. Errors: kUnsupported.
  void refuse_unsupported() const {
    for (const std::string_view name : kRefusedKeys) {
      if (first().has(key(name))) refuse(name, "this setting is not supported");
    }
    if (first().has(key("rope.dimension_sections")) && !metadata_.is_hybrid()) {
      refuse("rope.dimension_sections", "this setting is not supported");
    }
    for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
      if (metadata_.is_hybrid() && std::string_view(name) == "rope.dimension_count") continue;
      const auto width = first().find_int(key(name), 0, 1 << 20);
      if (width && *width != gguf_head_dim(first())) {
        refuse(name, fmt::format("{} of heads of {} channels is not supported", *width,
                                 gguf_head_dim(first())));
      }
    }
    const auto window = first().find_int(key("attention.sliding_window"), 0, kMaxPositions);
    if (window.value_or(0) > 0 && *window < size("context_length", kMaxPositions)) {
      refuse("attention.sliding_window", "sliding windows are not supported");
    }
    if (first().find_string(key("tensor_data_layout")).value_or("").starts_with("Meta")) {
      refuse("tensor_data_layout", "the order of Meta's files is not supported");
    }
  }

  // Rows of the embedding; files of Qwen's architectures say so only by the tensor, or by tokens.
  int64_t vocab_size() const {
    if (const GgufTensor* embedding = metadata_.find_tensor("token_embd.weight").second) {
      return embedding->shape.front();
    }
    if (first().has(key("vocab_size"))) return size("vocab_size", kMaxVocabSize);
    return std::ssize(first().get_strings("tokenizer.ggml.tokens"));
  }

  // config.json as transformers would have it. Ranges are checked here, so that errors name the
  // keys of the file; contradictions between keys are left to the one reader. The presence of
  // tensors stands for what config.json says of biases and tied embeddings: the metadata do not.
  json document() const {
    const int64_t num_heads = metadata_.equal_size("attention.head_count", kMaxHeads);
    const bool has_bias = metadata_.has_tensor("blk.0.attn_q.bias");
    json config = {
        {"architectures", {hf_architecture(metadata_)}},
        {"hidden_size", size("embedding_length", kMaxHiddenSize)},
        {"num_hidden_layers", metadata_.num_layers()},
        {"num_attention_heads", num_heads},
        {"num_key_value_heads",
         first().has(key("attention.head_count_kv"))
             ? metadata_.equal_size("attention.head_count_kv", kMaxHeads, metadata_.is_hybrid())
             : num_heads},
        {"head_dim", gguf_head_dim(first())},
        {"max_position_embeddings", size("context_length", kMaxPositions)},
        {"rms_norm_eps", first().get_double(key("attention.layer_norm_rms_epsilon"))},
        {"rope_theta", first().find_double(key("rope.freq_base")).value_or(10000.0)},
        {"rope_scaling", rope_scaling()},
        {"attention_bias", has_bias},
        {"qkv_bias", has_bias},
        {"tie_word_embeddings", !metadata_.has_tensor("output.weight")},
        {"vocab_size", vocab_size()},
        {"eos_token_id", end_tokens()}};
    add_gguf_mlps(metadata_, config);
    if (metadata_.is_hybrid()) add_gguf_hybrid(metadata_, config);
    const auto bos = first().find_int("tokenizer.ggml.bos_token_id", 0, kMaxVocabSize);
    if (bos) config["bos_token_id"] = *bos;
    return config;
  }

  // eos ends a text, eot a turn, eom a message; llama.cpp stops at each.
  std::vector<int64_t> end_tokens() const {
    std::vector<int64_t> ids;
    for (const char* name : {"eos", "eot", "eom"}) {
      const auto id =
          first().find_int(fmt::format("tokenizer.ggml.{}_token_id", name), 0, kMaxVocabSize);
      if (id && std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
    }
    return ids;
  }

  // Null without scaling. `rope.scale_linear` is the key of files from before 2024; `finetuned`
  // says how the model was made and changes nothing.
  json rope_scaling() const {
    const std::string type = first().find_string(key("rope.scaling.type")).value_or("none");
    const auto number = [&](std::string_view name) { return first().get_double(key(name)); };
    if (type == "none") {
      const double scale = first().find_double(key("rope.scale_linear")).value_or(1.0);
      if (scale == 1.0) return nullptr;
      return {{"rope_type", "linear"}, {"factor", scale}};
    }
    if (type == "linear") return {{"rope_type", type}, {"factor", number("rope.scaling.factor")}};
    if (type != "yarn") {
      refuse("rope.scaling.type", fmt::format("\"{}\" is not supported", printable(type)));
    }
    json scaling = {{"rope_type", type},
                    {"factor", number("rope.scaling.factor")},
                    {"original_max_position_embeddings",
                     size("rope.scaling.original_context_length", kMaxPositions)}};
    for (const char* name : {"beta_fast", "beta_slow"}) {
      const std::string of_file = std::string("rope.scaling.yarn_") + name;
      if (first().has(key(of_file))) scaling[name] = number(of_file);
    }
    return scaling;
  }

  // Llama 3's scaling: its parameters are not in the file, only what follows from them, a divisor
  // of each frequency, rounded to F32. So frequencies may differ from config.json's in the last
  // bit.
  void read_rope_divisors(ModelConfig& model) const {
    const std::pair found = metadata_.find_tensor(kGgufRopeFactors);
    const GgufFile* const file = found.first;  // a lambda of clang 14 captures no bindings
    const GgufTensor* const tensor = found.second;
    if (tensor == nullptr) return;
    const auto fail = [&](std::string why) {
      throw Error(ErrorCode::kModel, fmt::format("tensor \"{}\" {}", kGgufRopeFactors, why),
                  file->name());
    };
    if (tensor->num_elements != gguf_head_dim(first()) / 2) {
      fail(fmt::format("has {} elements; heads of {} channels have half as many pairs",
                       tensor->num_elements, gguf_head_dim(first())));
    }
    if (model.rope.type != RopeType::kDefault) fail("is there beside another scaling");
    std::vector<float> divisors(static_cast<size_t>(tensor->num_elements));
    const GgufStorage storage{.type = tensor->type, .row_elements = tensor->num_elements};
    read_gguf_elements(file->file(), tensor->begin, storage, 0, divisors);
    for (const float divisor : divisors) {
      if (!(divisor > 0.0f) || !std::isfinite(divisor)) fail("has a value that is no divisor");
    }
    model.rope.type = RopeType::kDivisors;
    model.rope.factor = std::ranges::max(divisors);
    model.rope.divisors = std::move(divisors);
  }

  // How rotary frequencies are scaled and experts chosen changes every result; what else is unknown
  // may not.
  void warn_of_unknown_keys(std::vector<std::string>& warnings) const {
    const std::string prefix = key("");
    for (const std::string& found : first().keys()) {
      if (!found.starts_with(prefix)) continue;
      const std::string_view name = std::string_view(found).substr(prefix.size());
      if (std::ranges::find(kKnownKeys, name) != std::end(kKnownKeys)) continue;
      if (metadata_.is_hybrid() && is_hybrid_key(name)) continue;
      if (name.starts_with("rope.scaling.") || name.starts_with("expert_")) {
        refuse(name, "this setting is not supported");
      }
      warnings.push_back(
          fmt::format("{}: {} is not known and is ignored", first().name(), printable(found)));
    }
  }

  GgufMetadata metadata_;
};

}  // namespace

ModelConfig read_gguf_config(const std::filesystem::path& path) { return GgufConfig(path).read(); }

}  // namespace sluice
