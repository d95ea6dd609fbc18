// config.json of published models with their published sizes, and an error for each way in which
// one can be wrong.
//
// Source: the keys below are those of the models' config.json on the Hugging Face hub; parameter
// counts are the hub's "safetensors" counts of the same models.
#include "model/model_config.h"

#include <string>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

using nlohmann::json;

const json kQwen3_06B = json::parse(R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "use_cache": true,
  "use_sliding_window": false, "vocab_size": 151936})");

const json kQwen25_7B = json::parse(R"({
  "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 151643, "eos_token_id": 151645,
  "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
  "max_position_embeddings": 32768, "max_window_layers": 28, "model_type": "qwen2",
  "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_sliding_window": false,
  "vocab_size": 152064})");

const json kLlama31_8B = json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "vocab_size": 128256})");

// `base` with the members of `changes` set; null removes a key.
json with(json base, const json& changes) {
  base.merge_patch(changes);
  return base;
}

ModelConfig parse(const json& config) {
  const std::string text = config.dump();
  return parse_model_config({.config = text});
}

ModelConfig parse_with_generation(const json& config, const std::string& generation) {
  const std::string text = config.dump();
  return parse_model_config({.config = text, .generation = generation});
}

std::string error_of(ErrorCode code, const json& config) {
  return expect_error(code, [&] { parse(config); });
}

// The errors of Qwen3-0.6B with one key changed.
std::string model_error(const char* key, const json& value) {
  return error_of(ErrorCode::kModel, with(kQwen3_06B, {{key, value}}));
}

TEST(ModelConfig, ReadsQwen3) {
  const ModelConfig model = parse(kQwen3_06B);
  EXPECT_EQ(model.architecture, Architecture::kQwen3);
  EXPECT_EQ(model.vocab_size, 151936);
  EXPECT_EQ(model.hidden_size, 1024);
  EXPECT_EQ(std::get<DenseMlp>(model.layers[27].mlp).intermediate_size, 3072);
  EXPECT_EQ(model.num_layers(), 28);
  EXPECT_EQ(model.attention(),
            (Attention{.num_q_heads = 16, .num_kv_heads = 8, .head_dim = 128, .qk_norm = true}));
  EXPECT_EQ(model.rms_norm_eps, 1e-6f);
  EXPECT_TRUE(model.tie_word_embeddings);
  EXPECT_EQ(max_positions(model), 40960);
  EXPECT_EQ(model.rope.type, RopeType::kDefault);
  EXPECT_EQ(model.rope.theta, 1e6);
  EXPECT_EQ(model.dtype, DType::kBF16);
  EXPECT_EQ(model.eos_ids, (std::vector<int32_t>{151645}));
  EXPECT_EQ(model.bos_id, 151643);
  EXPECT_TRUE(model.warnings.empty());
}

TEST(ModelConfig, ReadsQwen2) {
  const ModelConfig model = parse(kQwen25_7B);
  EXPECT_EQ(model.architecture, Architecture::kQwen2);
  EXPECT_EQ(model.attention().head_dim, 128);
  EXPECT_EQ(model.attention().num_q_heads, 7 * model.attention().num_kv_heads);
  EXPECT_TRUE(model.attention().qkv_bias);
  EXPECT_FALSE(model.attention().o_bias);
  EXPECT_FALSE(model.attention().qk_norm);
  EXPECT_TRUE(model.warnings.empty());
}

TEST(ModelConfig, ReadsLlama) {
  const ModelConfig model = parse(kLlama31_8B);
  EXPECT_EQ(model.architecture, Architecture::kLlama);
  EXPECT_EQ(model.rope.type, RopeType::kLlama3);
  EXPECT_EQ(model.rope.original_max_positions, 8192);
  EXPECT_EQ(max_positions(model), 131072);
  EXPECT_FALSE(model.attention().qkv_bias);
  EXPECT_EQ(model.eos_ids, (std::vector<int32_t>{128001, 128008, 128009}));
  const ModelConfig biased = parse(with(kLlama31_8B, {{"attention_bias", true}}));
  EXPECT_TRUE(biased.attention().qkv_bias);
  EXPECT_TRUE(biased.attention().o_bias);
}

TEST(ModelConfig, CountsPublishedSizes) {
  EXPECT_EQ(parse(kQwen3_06B).num_parameters(), 596'049'920);
  EXPECT_EQ(parse(kQwen25_7B).num_parameters(), 7'615'616'512);
  EXPECT_EQ(parse(kLlama31_8B).num_parameters(), 8'030'261'248);
  const json llama_1b = with(kLlama31_8B, {{"hidden_size", 2048},
                                           {"intermediate_size", 8192},
                                           {"num_hidden_layers", 16},
                                           {"head_dim", 64},
                                           {"tie_word_embeddings", true}});
  EXPECT_EQ(parse(llama_1b).num_parameters(), 1'235'814'400);
  const json qwen_05b = with(kQwen25_7B, {{"hidden_size", 896},
                                          {"intermediate_size", 4864},
                                          {"num_hidden_layers", 24},
                                          {"num_attention_heads", 14},
                                          {"num_key_value_heads", 2},
                                          {"vocab_size", 151936},
                                          {"tie_word_embeddings", true}});
  EXPECT_EQ(parse(qwen_05b).num_parameters(), 494'032'768);
}

TEST(ModelConfig, CountsKvBytes) {
  EXPECT_EQ(parse(kQwen3_06B).kv_bytes_per_token(), 112u * 1024);
  EXPECT_EQ(parse(kLlama31_8B).kv_bytes_per_token(), 128u * 1024);
  EXPECT_EQ(parse(kQwen25_7B).kv_bytes_per_token(), 56u * 1024);
}

TEST(ModelConfig, ReadsTheKeysOfTransformers5) {
  json config = with(kLlama31_8B, {{"rope_theta", nullptr}, {"torch_dtype", nullptr}});
  config["dtype"] = "float16";
  config["rope_parameters"] = config["rope_scaling"];
  config.erase("rope_scaling");
  config["rope_parameters"]["rope_theta"] = 500000.0;
  const ModelConfig model = parse(config);
  EXPECT_EQ(model.dtype, DType::kF16);
  EXPECT_EQ(model.rope.type, RopeType::kLlama3);
  EXPECT_EQ(model.rope.theta, 500000.0);
  EXPECT_EQ(rope_frequencies(model).inv_freq, rope_frequencies(parse(kLlama31_8B)).inv_freq);
}

TEST(ModelConfig, StretchesPositionsAsVllmDoes) {
  const json yarn = {
      {"rope_scaling",
       {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}};
  EXPECT_EQ(max_positions(parse(with(kQwen25_7B, yarn))), 131072);
  const json linear = {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}};
  EXPECT_EQ(max_positions(parse(with(kQwen25_7B, linear))), 65536);
}

TEST(ModelConfig, FillsInWhatFilesLeaveOut) {
  EXPECT_EQ(parse(with(kQwen3_06B, {{"head_dim", nullptr}})).attention().head_dim, 128)
      << "transformers' default for Qwen3, not 1024 / 16";
  EXPECT_EQ(parse(with(kQwen25_7B, {{"num_key_value_heads", nullptr}})).attention().num_kv_heads,
            28);
  EXPECT_FALSE(parse(with(kQwen3_06B, {{"tie_word_embeddings", nullptr}})).tie_word_embeddings);
  EXPECT_FALSE(parse(with(kQwen3_06B, {{"torch_dtype", nullptr}})).dtype.has_value());
  EXPECT_EQ(parse(with(kLlama31_8B, {{"architectures", nullptr}})).architecture,
            Architecture::kLlama);
}

TEST(ModelConfig, AppliesGenerationDefaults) {
  const ModelConfig model = parse_with_generation(kQwen3_06B, R"({
    "bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
    "pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    "transformers_version": "4.51.0"})");
  EXPECT_EQ(model.sampling.temperature, 0.6f);
  EXPECT_EQ(model.sampling.top_k, 20);
  EXPECT_EQ(model.sampling.top_p, 0.95f);
  EXPECT_EQ(model.sampling.min_p, SamplingParams().min_p);
  EXPECT_EQ(model.eos_ids, (std::vector<int32_t>{151645, 151643}));
  EXPECT_TRUE(model.warnings.empty());
}

TEST(ModelConfig, GenerationDefaultsMayMeanGreedyOrNoLimit) {
  const char* greedy = R"({"do_sample": false, "temperature": 0.6, "min_p": 0.1})";
  EXPECT_EQ(parse_with_generation(kQwen3_06B, greedy).sampling.temperature, 0);
  EXPECT_EQ(parse_with_generation(kQwen3_06B, greedy).sampling.min_p, 0.1f);
  for (const char* all : {R"({"top_k": 0})", R"({"top_k": -1})", R"({"do_sample": true})"}) {
    const SamplingParams sampling = parse_with_generation(kQwen3_06B, all).sampling;
    EXPECT_FALSE(sampling.top_k.has_value()) << all;
    EXPECT_EQ(sampling.temperature, SamplingParams().temperature) << all;
  }
}

TEST(ModelConfig, WarnsOfWhatItIgnores) {
  const ModelConfig model =
      parse_with_generation(with(kQwen25_7B, {{"eos_token_id", 200000}}),
                            R"({"no_repeat_ngram_size": 3, "num_beams": 1, "eos_token_id": 7})");
  ASSERT_EQ(model.warnings.size(), 2u);
  EXPECT_EQ(model.warnings[0],
            "generation_config.json: no_repeat_ngram_size 3 is not supported and is ignored");
  EXPECT_TRUE(
      contains(model.warnings[1], "eos_token_id 200000 is outside of the vocabulary of 152064"));
  EXPECT_EQ(model.eos_ids, (std::vector<int32_t>{7}));
}

TEST(ModelConfig, ReadsTheRepetitionPenalty) {
  const ModelConfig model = parse_with_generation(kQwen25_7B, R"({"repetition_penalty": 1.05})");
  EXPECT_EQ(model.sampling.repetition_penalty, 1.05f);
  EXPECT_TRUE(model.warnings.empty());
  for (const char* bad : {R"({"repetition_penalty": 0})", R"({"repetition_penalty": -1.1})"}) {
    EXPECT_THROW(parse_with_generation(kQwen25_7B, bad), Error) << bad;
  }
}

TEST(ModelConfig, RefusesMoreEndTokensThanThereIsRoomFor) {
  json ids = json::array();
  for (size_t i = 0; i < kMaxEosIds; ++i) ids.push_back(i);
  EXPECT_EQ(parse(with(kQwen3_06B, {{"eos_token_id", ids}})).eos_ids.size(), kMaxEosIds);
  const std::string error = expect_error(ErrorCode::kModel, [&] {
    parse_with_generation(with(kQwen3_06B, {{"eos_token_id", ids}}), R"({"eos_token_id": 100})");
  });
  EXPECT_TRUE(contains(error, "65 end tokens"));
  EXPECT_TRUE(contains(error, "at most 64"));
}

TEST(ModelConfig, RefusesBadGenerationDefaults) {
  for (const char* text :
       {R"({"temperature": -1})", R"({"temperature": "hot"})", R"({"top_p": 0})",
        R"({"top_p": 1.5})", R"({"top_k": -2})", R"({"top_k": 1.5})", R"({"min_p": 2})",
        R"({"eos_token_id": "x"})", R"({"eos_token_id": [1, -1]})", R"({"max_new_tokens": 0})"}) {
    const std::string error =
        expect_error(ErrorCode::kModel, [&] { parse_with_generation(kQwen3_06B, text); });
    EXPECT_TRUE(contains(error, "generation_config.json: ")) << text;
    EXPECT_TRUE(contains(error, "it must be")) << text;
  }
  EXPECT_TRUE(
      contains(expect_error(ErrorCode::kModel, [] { parse_with_generation(kQwen3_06B, ""); }),
               "generation_config.json: byte"));
}

TEST(ModelConfig, RefusesDimensionsOutOfRange) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const json& value : std::vector<json>{0, -1, int64_t{1} << 31, int64_t{1} << 62,
                                               UINT64_MAX, 1e30, 64.0, "64", true, json::array()}) {
      const std::string error = model_error(key, value);
      EXPECT_TRUE(contains(error, std::string("config.json: ") + key + " is ")) << value;
      EXPECT_TRUE(contains(error, "; it must be an integer from ")) << value;
    }
  }
}

TEST(ModelConfig, RefusesMissingKeys) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings", "rms_norm_eps"}) {
    EXPECT_TRUE(contains(model_error(key, nullptr), std::string(key) + " is missing")) << key;
  }
}

TEST(ModelConfig, RefusesDimensionsThatContradictEachOther) {
  EXPECT_TRUE(contains(model_error("num_key_value_heads", 3),
                       "num_key_value_heads is 3; it must be a divisor of num_attention_heads 16"));
  EXPECT_TRUE(contains(model_error("num_key_value_heads", 32), "must be a divisor of"));
  EXPECT_TRUE(
      contains(model_error("head_dim", 127), "head_dim is 127; it must be an even integer"));
  EXPECT_TRUE(contains(model_error("head_dim", 258), "an integer from 2 to 256"));
  const auto qwen2_error = [](const json& changes) {
    return error_of(ErrorCode::kModel, with(kQwen25_7B, changes));
  };
  EXPECT_TRUE(contains(qwen2_error({{"hidden_size", 3585}}),
                       "hidden_size is 3585; it must be a multiple of num_attention_heads 28"));
  EXPECT_TRUE(contains(qwen2_error({{"hidden_size", 28 * 127}}), "num_attention_heads is 127"));
  EXPECT_TRUE(contains(qwen2_error({{"hidden_size", 28 * 512}}), "num_attention_heads is 512"));
}

TEST(ModelConfig, LargestDimensionsDoNotOverflow) {
  const ModelConfig model = parse(with(kQwen3_06B, {{"vocab_size", 1 << 24},
                                                    {"hidden_size", 1 << 18},
                                                    {"head_dim", 256},
                                                    {"intermediate_size", 1 << 20},
                                                    {"num_hidden_layers", 1024},
                                                    {"num_attention_heads", 1024},
                                                    {"num_key_value_heads", 1024},
                                                    {"tie_word_embeddings", false},
                                                    {"max_position_embeddings", 1 << 30}}));
  const double layer = 4.0 * (1 << 18) * (1 << 18) + 3.0 * (1 << 18) * (1 << 20);
  EXPECT_NEAR(static_cast<double>(model.num_parameters()) / (1024 * layer + 0x1p43), 1.0, 1e-3);
  EXPECT_EQ(model.kv_bytes_per_token(), size_t{4} * 1024 * 1024 * 256);
}

TEST(ModelConfig, RefusesOtherArchitectures) {
  const auto unsupported = [](const json& changes) {
    return error_of(ErrorCode::kUnsupported, with(kQwen3_06B, changes));
  };
  constexpr const char* kList =
      "is not supported; Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM, "
      "Qwen3MoeForCausalLM, Qwen2MoeForCausalLM, MixtralForCausalLM, "
      "Qwen3_5ForConditionalGeneration, Qwen3_5MoeForConditionalGeneration and "
      "Qwen3NextForCausalLM are";
  EXPECT_TRUE(contains(unsupported({{"architectures", {"GPT2LMHeadModel"}}}),
                       std::string("architecture \"GPT2LMHeadModel\" ") + kList));
  EXPECT_TRUE(contains(unsupported({{"architectures", {"Qwen3ForCausalLM", "Other"}}}),
                       "architectures names 2, \"Qwen3ForCausalLM\" first; keep the one that"));
  EXPECT_TRUE(contains(unsupported({{"architectures", nullptr}, {"model_type", "gemma"}}),
                       std::string("model_type \"gemma\" ") + kList));
  EXPECT_TRUE(contains(error_of(ErrorCode::kUnsupported, json::object()), kList));
}

// Every error says what would be accepted, or what to do.
TEST(ModelConfig, EveryRefusalHasARemedy) {
  const auto has_remedy = [](const std::string& text) {
    for (const char* remedy : {"choose a model", "; only ", "set it to", "keep the one", "; use ",
                               "not supported; ", "must be ", ", use "}) {
      if (text.find(remedy) != text.npos) return true;
    }
    return false;
  };
  for (const json& changes : std::vector<json>{
           {{"architectures", {"A"}}},
           {{"architectures", {"A", "B"}}},
           {{"hidden_act", "gelu"}},
           {{"mlp_bias", true}},
           {{"use_sliding_window", true}},
           {{"layer_types", {"sliding_attention"}}},
           {{"quantization_config", {{"bits", 4}}}},
           {{"torch_dtype", "int8"}},
           {{"partial_rotary_factor", 0.5}},
           {{"rope_scaling", {{"rope_type", "longrope"}}}},
           {{"rope_scaling", {{"rope_type", "default"}, {"full_attention", {{"a", 1}}}}}},
           {{"vocab_size", 0}},
           {{"hidden_size", "x"}},
           {{"num_key_value_heads", 5}},
           {{"head_dim", 3}},
       }) {
    try {
      parse(with(kLlama31_8B, changes));
      ADD_FAILURE() << changes << " was accepted";
    } catch (const Error& error) {
      EXPECT_PRED1(has_remedy, error.what());
    }
  }
}

TEST(ModelConfig, RefusesFeaturesThatItDoesNotHave) {
  const auto unsupported = [](const json& changes) {
    return error_of(ErrorCode::kUnsupported, with(kLlama31_8B, changes));
  };
  EXPECT_TRUE(contains(unsupported({{"hidden_act", "gelu"}}),
                       "hidden_act \"gelu\" is not supported; only silu is"));
  EXPECT_TRUE(contains(unsupported({{"mlp_bias", true}}), "mlp_bias is true"));
  EXPECT_TRUE(contains(unsupported({{"use_sliding_window", true}}), "use_sliding_window is true"));
  EXPECT_TRUE(contains(unsupported({{"layer_types", {"full_attention", "sliding_attention"}}}),
                       "layer_types has \"sliding_attention\""));
  EXPECT_TRUE(contains(unsupported({{"quantization_config", {{"quant_method", "awq"}}}}),
                       "quantized with \"awq\""));
  EXPECT_TRUE(contains(unsupported({{"torch_dtype", "float8_e4m3fn"}}),
                       "torch_dtype \"float8_e4m3fn\" is not supported"));
  EXPECT_TRUE(contains(unsupported({{"rope_scaling", {{"rope_type", "longrope"}}}}),
                       "rope_type \"longrope\" is not supported"));
}

// Qwen2.5 of 28 layers with windows from layer 28 on.
TEST(ModelConfig, AcceptsSlidingWindowsThatHideNothing) {
  const json slides = with(kQwen25_7B, {{"use_sliding_window", true},
                                        {"sliding_window", 4096},
                                        {"num_hidden_layers", 28},
                                        {"max_window_layers", 28}});
  EXPECT_NO_THROW(parse(slides));
  const std::string error =
      error_of(ErrorCode::kUnsupported, with(slides, {{"max_window_layers", 21}}));
  EXPECT_TRUE(contains(error, "from layer 21 on"));
  json without_window = with(slides, {{"max_window_layers", 21}});
  without_window["sliding_window"] = nullptr;
  EXPECT_NO_THROW(parse(without_window));
  EXPECT_NO_THROW(parse(with(slides, {{"max_window_layers", 21}, {"sliding_window", 32768}})))
      << "as long as the positions";
  EXPECT_NO_THROW(
      parse(with(slides, {{"max_window_layers", 21}, {"layer_types", {"full_attention"}}})));
  json by_default = slides;
  by_default.erase("max_window_layers");
  EXPECT_NO_THROW(parse(by_default)) << "28, as in transformers";
}

TEST(ModelConfig, SaysThatAnAdapterIsNotApplied) {
  const TempDir dir;
  dir.write("config.json", kQwen3_06B.dump());
  EXPECT_TRUE(read_model_config(ModelDirectory(dir.path())).warnings.empty());
  dir.write("adapter_config.json", "{}");
  const ModelConfig model = read_model_config(ModelDirectory(dir.path()));
  ASSERT_EQ(model.warnings.size(), 1u);
  EXPECT_TRUE(contains(model.warnings[0], "(adapter_config.json), which is not applied"));
}

TEST(ModelConfig, RefusesValuesOfTheWrongType) {
  for (const char* key : {"tie_word_embeddings", "attention_bias", "use_sliding_window"}) {
    EXPECT_TRUE(
        contains(model_error(key, 1), std::string(key) + " is 1; it must be true or false"));
  }
  EXPECT_TRUE(contains(model_error("architectures", "Qwen3ForCausalLM"), "a list of strings"));
  EXPECT_TRUE(contains(model_error("hidden_act", 1), "a string"));
  EXPECT_TRUE(contains(model_error("rms_norm_eps", 0), "a number from"));
  EXPECT_TRUE(contains(model_error("rms_norm_eps", "1e-6"), "a number from"));
  EXPECT_TRUE(
      contains(error_of(ErrorCode::kModel, json::array()), "where an object {...} must be"));
}

TEST(ModelConfig, ReadsADirectory) {
  const TempDir dir;
  dir.write("config.json", kQwen3_06B.dump());
  EXPECT_FALSE(read_model_config(ModelDirectory(dir.path())).sampling.top_k.has_value());
  dir.write("generation_config.json", R"({"top_k": 20})");
  EXPECT_EQ(read_model_config(ModelDirectory(dir.path())).sampling.top_k, 20);
  dir.write("generation_config.json", "");
  EXPECT_TRUE(contains(
      expect_error(ErrorCode::kModel, [&] { read_model_config(ModelDirectory(dir.path())); }),
      (dir.path() / "generation_config.json").string() + ": byte"));
  dir.write("config.json", "{");
  EXPECT_TRUE(contains(
      expect_error(ErrorCode::kModel, [&] { read_model_config(ModelDirectory(dir.path())); }),
      (dir.path() / "config.json").string() + ": byte 2: not valid JSON"));
}

}  // namespace
}  // namespace sluice
