// Reads and checks config.json key by key. The ranges are wider than any published model and narrow
// enough that no product of dimensions overflows 64 bits.
#include "model/model_config.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "core/error.h"
#include "io/json.h"
#include "io/json_type.h"
#include "io/model_file.h"
#include "model/config_limits.h"
#include "model/gguf/gguf_config.h"
#include "model/mixer_config.h"
#include "model/mlp_config.h"
#include "model/quantization.h"
#include "ops/kv_blocks.h"

namespace sluice {
namespace {

// Sets the sizes of the model and its layers. Layers with KV, and those with a state, are numbered
// apart. REQUIRES: the rope was read.
void read_layers(const JsonObject& config, ModelConfig& model) {
  model.vocab_size = read_size(config, "vocab_size", kMaxVocabSize);
  model.hidden_size = read_size(config, "hidden_size", kMaxHiddenSize);
  const int32_t num_layers = read_size(config, "num_hidden_layers", kMaxLayers);
  const std::vector<Mlp> mlps = read_mlps(config, model.architecture, num_layers);
  const std::vector<TokenMixer> mixers = read_mixers(config, model, num_layers);
  model.rms_norm_eps = static_cast<float>(config.get_double("rms_norm_eps", 1e-12, 1.0));
  model.norm_offset = is_hybrid(model.architecture) ? 1.0f : 0.0f;
  int32_t num_kv_layers = 0, num_states = 0;
  for (size_t i = 0; i < mixers.size(); ++i) {
    const bool has_kv = std::holds_alternative<Attention>(mixers[i]);
    model.layers.push_back({.mixer = mixers[i],
                            .mlp = mlps[i],
                            .kv_layer = has_kv ? LayerId(num_kv_layers++) : LayerId(),
                            .state_layer = has_kv ? LayerId() : LayerId(num_states++)});
  }
}

// Fails on settings that change results and are not implemented; ignoring them would give wrong
// text.
void refuse_unsupported(const JsonObject& config, Architecture architecture) {
  const std::string activation = config.find_string("hidden_act").value_or("silu");
  if (activation != "silu") {
    fail_unsupported(config, fmt::format("hidden_act {} is not supported; only silu is",
                                         describe_json(activation)));
  }
  if (config.find_bool("mlp_bias").value_or(false)) {
    fail_unsupported(
        config, "mlp_bias is true; biases in the MLP are not supported, choose a model without");
  }
  if (is_hybrid(architecture)) {  // read_mixers judges their layers
    if (!config.has("dual_chunk_attention_config")) return;
    fail_unsupported(
        config,
        "dual_chunk_attention_config of a hybrid is not supported; remove it, and take "
        "rope scaling (yarn) for more positions");
  }
  for (const std::string& type : config.find_strings("layer_types")) {
    if (type != "full_attention") {
      fail_unsupported(config,
                       fmt::format("layer_types has {}; only full_attention is supported, choose a "
                                   "model whose layers all have it",
                                   describe_json(type)));
    }
  }
}

// Fails if a layer has a sliding window that hides something. Source: transformers' Qwen2Config and
// Qwen3Config: the layers from max_window_layers on slide, unless layer_types says which do
// (refuse_unsupported); a sliding_window of null hides nothing, nor does one that is as long as
// the model's positions. With experts all layers slide or none; Mixtral has no switch beside
// sliding_window.
void refuse_sliding_window(const JsonObject& config, const ModelConfig& model) {
  constexpr int64_t kDefaultMaxWindowLayers = 28;
  const bool by_window_alone =
      model.architecture == Architecture::kMixtral && config.has("sliding_window");
  if (!config.find_bool("use_sliding_window").value_or(by_window_alone)) return;
  const std::vector<std::string> keys = config.keys();
  const bool is_null =
      std::ranges::find(keys, "sliding_window") != keys.end() && !config.has("sliding_window");
  int64_t first =
      config.find_int("max_window_layers", 0, kMaxPositions).value_or(kDefaultMaxWindowLayers);
  if (has_experts(model.architecture)) first = 0;
  const int64_t window = config.find_int("sliding_window", 1, kMaxPositions).value_or(1);
  if (is_null || config.has("layer_types") || first >= model.num_layers() ||
      window >= max_positions(model)) {
    return;
  }
  fail_unsupported(
      config, fmt::format("{}; sliding windows are not supported (here from layer {} on), set it "
                          "to {} if every layer should see everything",
                          by_window_alone ? fmt::format("sliding_window is {}", window)
                                          : "use_sliding_window is true",
                          first, by_window_alone ? "null" : "false"));
}

// The type that the file gives for the weights: `dtype` since transformers 4.56, `torch_dtype`
// before. Empty without either.
std::optional<DType> read_dtype(const JsonObject& config) {
  const std::string_view key = config.has("dtype") ? "dtype" : "torch_dtype";
  const auto name = config.find_string(key);
  if (!name) return std::nullopt;
  if (*name == "bfloat16") return DType::kBF16;
  if (*name == "float16") return DType::kF16;
  if (*name == "float32") return DType::kF32;
  fail_unsupported(config, fmt::format("{} {} is not supported; bfloat16, float16 and float32 are",
                                       key, describe_json(*name)));
}

// Appends the ids of `key` (an integer or a list) that are in the vocabulary and not yet in `ids`.
// Ids outside it can never be sampled; they are dropped with a warning.
void add_token_ids(const JsonObject& object, std::string_view key, ModelConfig& model,
                   std::vector<int32_t>& ids) {
  for (const int64_t id : object.find_ints(key, 0, kMaxVocabSize)) {
    if (id >= model.vocab_size) {
      model.warnings.push_back(
          fmt::format("{}: {} {} is outside of the vocabulary of {} and is "
                      "ignored",
                      object.name(), key, id, model.vocab_size));
    } else if (std::ranges::find(ids, id) == ids.end()) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }
}

// 0 fails: nucleus sampling would have no candidate.
float read_top_p(const JsonObject& generation) {
  const double top_p = generation.get_double("top_p", 0.0, 1.0);
  if (top_p == 0.0) generation.fail("top_p", "above 0 and at most 1");
  return static_cast<float>(top_p);
}

// 0 fails: it would divide logits by 0.
float read_repetition_penalty(const JsonObject& generation) {
  constexpr double kLargest = 1000.0;
  const double penalty = generation.get_double("repetition_penalty", 0.0, kLargest);
  if (penalty == 0.0) generation.fail("repetition_penalty", "above 0 and at most 1000");
  return static_cast<float>(penalty);
}

// The suggestions of generation_config.json. do_sample false means greedy, whatever the temperature
// says; a top_k of 0 or -1 means no limit.
void read_sampling(const JsonObject& generation, SamplingParams& params) {
  if (const auto temperature = generation.find_double("temperature", 0.0, 1000.0)) {
    params.temperature = static_cast<float>(*temperature);
  }
  if (!generation.find_bool("do_sample").value_or(true)) params.temperature = 0;
  const int64_t top_k = generation.find_int("top_k", -1, kMaxVocabSize).value_or(0);
  if (top_k > 0) params.top_k = static_cast<int32_t>(top_k);
  if (generation.has("top_p")) params.top_p = read_top_p(generation);
  if (const auto min_p = generation.find_double("min_p", 0.0, 1.0)) {
    params.min_p = static_cast<float>(*min_p);
  }
  if (generation.has("repetition_penalty")) {
    params.repetition_penalty = read_repetition_penalty(generation);
  }
}

// Warns of each sampling option that Sluice lacks, unless the file sets it to its neutral value.
void warn_of_ignored_generation(const JsonObject& generation, std::vector<std::string>& warnings) {
  // An option of transformers' GenerationConfig and its neutral value.
  struct Neutral {
    const char* key;
    double value;  // with this value the option changes nothing
  };
  for (const auto& [key, value] :
       {Neutral{"no_repeat_ngram_size", 0.0}, Neutral{"num_beams", 1.0}, Neutral{"typical_p", 1.0},
        Neutral{"epsilon_cutoff", 0.0}, Neutral{"eta_cutoff", 0.0},
        Neutral{"encoder_repetition_penalty", 1.0}}) {
    const double found = generation.find_double(key, -1e9, 1e9).value_or(value);
    if (found != value) {
      warnings.push_back(
          fmt::format("{}: {} {} is not supported and is ignored", generation.name(), key, found));
    }
  }
}

// Reads generation_config.json. Its end tokens come first in eos_ids; parse_model_config appends
// those of config.json.
void read_generation(const JsonObject& generation, ModelConfig& model) {
  read_sampling(generation, model.sampling);
  generation.find_int("max_new_tokens", 1, kMaxPositions);  // must make sense; not used
  warn_of_ignored_generation(generation, model.warnings);
  add_token_ids(generation, "eos_token_id", model, model.eos_ids);
}

// The object that describes the text model: that of a model of text and pictures is nested.
JsonObject text_config(const JsonObject& config) {
  return config.find_object("text_config").value_or(config);
}

// The weights' types and ids that a file may have outside or, nested, inside of the text part.
void read_shared(const JsonObject& root, const JsonObject& text, ModelConfig& model) {
  model.quantization = read_quantization(root);
  model.tie_word_embeddings = root.find_bool("tie_word_embeddings")
                                  .value_or(text.find_bool("tie_word_embeddings").value_or(false));
  model.dtype = read_dtype(root);
  if (!model.dtype) model.dtype = read_dtype(text);
}

// Reads config.json except for eos_token_id, whose ids follow those of generation_config.json.
ModelConfig read_config(const JsonObject& root) {
  ModelConfig model;
  // The architecture comes first: head_dim and the biases depend on it.
  model.architecture = read_architecture(root);
  const JsonObject config = is_hybrid(model.architecture) ? text_config(root) : root;
  refuse_unsupported(config, model.architecture);
  read_shared(root, config, model);
  model.max_position_embeddings = config.get_int("max_position_embeddings", 1, kMaxPositions);
  model.rope = read_rope_config(
      config, model.max_position_embeddings,
      is_hybrid(model.architecture) ? RopeForm::kPartial : RopeForm::kWhole, model.warnings);
  read_layers(config, model);
  refuse_sliding_window(config, model);
  std::vector<int32_t> bos_ids;
  add_token_ids(config, "bos_token_id", model, bos_ids);
  if (!bos_ids.empty()) model.bos_id = bos_ids[0];
  model.dual_chunk = read_dual_chunk(config);
  return model;
}

// Sum of fn(kind) over the mixers and MLPs of all layers.
template <typename Sum, typename Fn>
Sum sum_of_layers(const ModelConfig& model, Fn fn) {
  Sum sum = 0;
  for (const LayerSpec& layer : model.layers) {
    sum += std::visit(fn, layer.mixer) + std::visit(fn, layer.mlp);
  }
  return sum;
}

}  // namespace

int32_t ModelConfig::num_kv_layers() const {
  return static_cast<int32_t>(
      std::ranges::count_if(layers, [](const LayerSpec& layer) { return layer.kv_layer.valid(); }));
}

const Attention& ModelConfig::attention() const {
  const Attention* found = nullptr;
  for (const LayerSpec& layer : layers) {
    const auto* attention = std::get_if<Attention>(&layer.mixer);
    if (attention == nullptr) continue;
    if (found == nullptr) found = attention;
    SLUICE_CHECK(*attention == *found, "layers whose attention differs");
  }
  SLUICE_CHECK(found != nullptr, "a model without attention");
  return *found;
}

StateLayout ModelConfig::states() const {
  StateLayout layout;
  for (const LayerSpec& layer : layers) {
    const auto* net = std::get_if<DeltaNet>(&layer.mixer);
    if (net == nullptr) continue;
    SLUICE_CHECK(!layout.present() || net->shape == layout.shape, "layers whose states differ");
    layout.shape = net->shape;
    ++layout.num_layers;
  }
  return layout;
}

double ModelConfig::products_per_row() const {
  return sum_of_layers<double>(*this, [this](const auto& kind) {
    return static_cast<double>(kind.products_per_row(hidden_size));
  });
}

double ModelConfig::products_per_pair() const {
  return static_cast<double>(num_kv_layers()) *
         static_cast<double>(attention().products_per_pair());
}

// In a layer also the norms before mixer and MLP. Beside the layers: the embedding, the output head
// unless tied, and the final norm.
int64_t ModelConfig::num_parameters() const {
  const int64_t hidden = hidden_size;
  const int64_t of_kinds = sum_of_layers<int64_t>(
      *this, [hidden](const auto& kind) { return kind.num_parameters(hidden); });
  const int64_t norms = (2 * int64_t{num_layers()} + 1) * hidden;
  const int64_t embedding = int64_t{vocab_size} * hidden;
  return of_kinds + norms + embedding * (tie_word_embeddings ? 1 : 2);
}

int64_t ModelConfig::num_active_parameters() const {
  const int64_t hidden = hidden_size;
  return num_parameters() - sum_of_layers<int64_t>(*this, [hidden](const auto& kind) {
           return kind.num_parameters(hidden) - kind.num_active_parameters(hidden);
         });
}

KvBlockShape ModelConfig::kv_block(KvElement element, int32_t block_tokens) const {
  return {.num_kv_heads = attention().num_kv_heads,
          .head_dim = attention().padded_head_dim(),
          .block_tokens = block_tokens,
          .element = element,
          .keys_in_bf16 = element != KvElement::kBFloat16 && attention().qkv_bias};
}

size_t ModelConfig::kv_bytes_per_token(KvElement element) const {
  return static_cast<size_t>(num_kv_layers()) * kv_block(element, 1).block_bytes();
}

int64_t max_positions(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  if (rope.type == RopeType::kLinear) {
    return static_cast<int64_t>(static_cast<double>(config.max_position_embeddings) * rope.factor);
  }
  if (rope.type == RopeType::kYarn) {
    return static_cast<int64_t>(static_cast<double>(rope.original_max_positions) * rope.factor);
  }
  return config.max_position_embeddings;
}

RopeFrequencies rope_frequencies(const ModelConfig& config) {
  const Attention& attention = config.attention();
  return rope_frequencies(config.rope,
                          attention.rotary_dim == 0 ? attention.head_dim : attention.rotary_dim);
}

ModelConfig parse_model_config(const ModelConfigTexts& texts) {
  const nlohmann::json document = parse_json(texts.config, texts.config_name);
  const JsonObject config(document, std::string(texts.config_name));
  ModelConfig model = read_config(config);
  if (texts.generation) {
    const nlohmann::json defaults = parse_json(*texts.generation, texts.generation_name);
    read_generation(JsonObject(defaults, std::string(texts.generation_name)), model);
  }
  add_token_ids(config, "eos_token_id", model, model.eos_ids);
  if (is_hybrid(model.architecture)) {
    add_token_ids(text_config(config), "eos_token_id", model, model.eos_ids);
  }
  if (model.eos_ids.size() > kMaxEosIds) {
    throw Error(ErrorCode::kModel,
                fmt::format("eos_token_id names {} end tokens, here and in {}; at most {} are "
                            "supported, so leave out those that end no answer",
                            model.eos_ids.size(), texts.generation_name, kMaxEosIds),
                config.name());
  }
  return model;
}

ModelConfig read_model_config(const ModelDirectory& directory) {
  if (directory.is_gguf()) return read_gguf_config(directory.path());
  const std::string config_path = directory.config_path().string();
  const std::string config = read_model_file(config_path);
  ModelConfigTexts texts{.config = config, .config_name = config_path};
  std::string generation, generation_name;
  if (const auto path = directory.find_file("generation_config.json")) {
    generation = read_model_file(*path);
    generation_name = path->string();
    texts.generation = generation;
    texts.generation_name = generation_name;
  }
  ModelConfig model = parse_model_config(texts);
  if (directory.find_file("adapter_config.json")) {
    model.warnings.push_back(fmt::format(
        "{} has an adapter (adapter_config.json), which is not applied; merge it into the weights "
        "with merge_and_unload() of peft, or remove it",
        directory.path().string()));
  }
  return model;
}

}  // namespace sluice
