// Writes config.json anew from the metadata, so that one reader checks both forms.
#include "model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/printable.h"
#include "io/gguf/gguf_weights.h"
#include "model/config_limits.h"

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
                                           "expert_used_count",
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
                                             "rope.dimension_sections",
                                             "use_parallel_residual"};

// The files of one model; metadata are in the first.
class GgufConfig {
 public:
  explicit GgufConfig(const std::filesystem::path& path) {
    files_.emplace_back(path);
    for (const std::filesystem::path& shard : gguf_shards(files_.front())) {
      if (shard != path) files_.emplace_back(shard);
    }
    architecture_ = gguf_architecture(first());
    prefix_ = architecture_ + ".";
  }

  // The refusals come first: what is not supported is named by its key before a size that follows
  // from it seems wrong.
  ModelConfig read() {
    refuse_unsupported();
    const std::string text = document().dump();
    ModelConfig model = parse_model_config({.config = text, .config_name = first().name()});
    read_rope_divisors(model);
    warn_of_unknown_keys(model.warnings);
    return model;
  }

 private:
  const GgufFile& first() const { return files_.front(); }
  std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  // A size of the architecture. Errors: kModel naming the key if it is absent, 0 or above `max`.
  int64_t size(std::string_view name, int64_t max) const {
    return first().get_int(key(name), 1, max);
  }

  // A size that may be a list with one number for each layer, which must then be equal.
  int64_t equal_size(std::string_view name, int64_t max) const {
    const std::vector<int64_t> sizes = first().get_ints(key(name), 1, max);
    if (sizes.empty() || std::ranges::count(sizes, sizes.front()) != std::ssize(sizes)) {
      refuse(name, "layers that differ are not supported");
    }
    return sizes.front();
  }

  // Errors: kUnsupported. The remedy is another model, since the file is as its maker meant it.
  [[noreturn]] void refuse(std::string_view name, std::string_view why) const {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: {}; choose a model without", key(name), why), first().name());
  }

  // The file that has a tensor, and the tensor; null if there is none.
  std::pair<const GgufFile*, const GgufTensor*> find_tensor(std::string_view name) const {
    for (const GgufFile& file : files_) {
      if (const GgufTensor* tensor = file.find_tensor(name)) return {&file, tensor};
    }
    return {nullptr, nullptr};
  }
  bool has_tensor(std::string_view name) const { return find_tensor(name).second != nullptr; }

  // What would change every result and has no counterpart in Sluice. Errors: kUnsupported.
  void refuse_unsupported() const {
    for (const std::string_view name : kRefusedKeys) {
      if (first().has(key(name))) refuse(name, "this setting is not supported");
    }
    if (first().find_int(key("expert_count"), 0, 1 << 20).value_or(0) > 0) {
      refuse("expert_count", "mixtures of experts are not supported");
    }
    for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
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
    if (const GgufTensor* embedding = find_tensor("token_embd.weight").second) {
      return embedding->shape.front();
    }
    if (first().has(key("vocab_size"))) return size("vocab_size", kMaxVocabSize);
    return std::ssize(first().get_strings("tokenizer.ggml.tokens"));
  }

  // config.json as transformers would have it. Ranges are checked here, so that errors name the
  // keys of the file; contradictions between keys are left to the one reader. The presence of
  // tensors stands for what config.json says of biases and tied embeddings: the metadata do not.
  json document() const {
    const int64_t num_heads = equal_size("attention.head_count", kMaxHeads);
    json config = {{"architectures",
                    {architecture_ == "llama"   ? "LlamaForCausalLM"
                     : architecture_ == "qwen2" ? "Qwen2ForCausalLM"
                                                : "Qwen3ForCausalLM"}},
                   {"hidden_size", size("embedding_length", kMaxHiddenSize)},
                   {"intermediate_size", equal_size("feed_forward_length", kMaxIntermediateSize)},
                   {"num_hidden_layers", size("block_count", kMaxLayers)},
                   {"num_attention_heads", num_heads},
                   {"num_key_value_heads", first().has(key("attention.head_count_kv"))
                                               ? equal_size("attention.head_count_kv", kMaxHeads)
                                               : num_heads},
                   {"head_dim", gguf_head_dim(first())},
                   {"max_position_embeddings", size("context_length", kMaxPositions)},
                   {"rms_norm_eps", first().get_double(key("attention.layer_norm_rms_epsilon"))},
                   {"rope_theta", first().find_double(key("rope.freq_base")).value_or(10000.0)},
                   {"rope_scaling", rope_scaling()},
                   {"attention_bias", has_tensor("blk.0.attn_q.bias")},
                   {"tie_word_embeddings", !has_tensor("output.weight")},
                   {"vocab_size", vocab_size()},
                   {"eos_token_id", end_tokens()}};
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
    const std::pair found = find_tensor(kGgufRopeFactors);
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

  // How rotary frequencies are scaled changes every result; what else is unknown may not.
  void warn_of_unknown_keys(std::vector<std::string>& warnings) const {
    for (const std::string& found : first().keys()) {
      if (!found.starts_with(prefix_)) continue;
      const std::string_view name = std::string_view(found).substr(prefix_.size());
      if (std::ranges::find(kKnownKeys, name) != std::end(kKnownKeys)) continue;
      if (name.starts_with("rope.scaling.")) refuse(name, "this setting is not supported");
      warnings.push_back(
          fmt::format("{}: {} is not known and is ignored", first().name(), printable(found)));
    }
  }

  std::vector<GgufFile> files_;
  std::string architecture_;
  std::string prefix_;
};

}  // namespace

ModelConfig read_gguf_config(const std::filesystem::path& path) { return GgufConfig(path).read(); }

}  // namespace sluice
