// Files of a model that contradict each other: which of them counts, and what is said.
#include "engine/plan/model_check.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "io/file.h"
#include "io/json_type.h"
#include "io/safetensors.h"
#include "io/temp_dir.h"
#include "sluice/inspect.h"
#include "sluice/llm.h"
#include "support/tiny_models.h"
#include "tokenizer/tiny_tokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A copy of a golden model whose files a test changes.
class GoldenCopy {
 public:
  explicit GoldenCopy(const std::string& name) : name_(name) {
    const fs::path from = testing::tiny_options(name).model;
    for (const char* file : {"config.json", "model.safetensors"}) {
      fs::copy_file(from / file, dir_.path() / file);
    }
  }

  EngineOptions options() const {
    EngineOptions options = testing::tiny_options(name_);
    options.model = dir_.path();
    return options;
  }

  void set(const std::string& key, const json& value) const {
    json config = json::parse(read_file(dir_.path() / "config.json"));
    config[key] = value;
    dir_.write("config.json", config.dump());
  }

  // Adds a tensor of the type and shape of the embedding with these bytes, or its own without any.
  void add_head(const std::string& bytes = "") const {
    change_tensors([&](std::vector<SafetensorsInput>& tensors) {
      const auto embedding =
          std::ranges::find(tensors, "model.embed_tokens.weight", &SafetensorsInput::name);
      SafetensorsInput head = *embedding;
      head.name = "lm_head.weight";
      if (!bytes.empty()) head.bytes = std::as_bytes(std::span(bytes));
      tensors.push_back(head);
    });
  }

  // Adds tensors of one F32.
  void add_scalars(const std::vector<std::string>& names) const {
    static constexpr float kValue = 0.03f;
    change_tensors([&](std::vector<SafetensorsInput>& tensors) {
      for (const std::string& name : names) {
        tensors.push_back({name, DType::kF32, {}, std::as_bytes(std::span(&kValue, 1))});
      }
    });
  }

  double nmse() const {
    const testing::Golden golden = testing::read_golden(name_);
    LLM llm(options());
    const LLM::Trace trace = llm.trace(golden.prompt, {});
    double error = 0, power = 0;
    for (size_t i = 0; i < golden.logits.size(); ++i) {
      error += std::pow(double{trace.logits.data[i]} - golden.logits[i], 2);
      power += double{golden.logits[i]} * golden.logits[i];
    }
    return error / power;
  }

 private:
  void change_tensors(const std::function<void(std::vector<SafetensorsInput>&)>& change) const {
    const fs::path path = dir_.path() / "model.safetensors";
    const std::string file = read_file(path);
    const auto all = std::as_bytes(std::span(file));
    std::vector<SafetensorsInput> tensors;
    for (const SafetensorsEntry& entry : parse_safetensors_header(all, "weights").tensors) {
      const auto own = all.subspan(entry.begin, entry.end - entry.begin);
      tensors.push_back({entry.name, *entry.dtype, entry.shape, own});
    }
    change(tensors);
    write_safetensors(path, tensors);
  }

  std::string name_;
  TempDir dir_;
};

size_t count_with(const std::vector<std::string>& lines, const std::string& part) {
  size_t count = 0;
  for (const std::string& line : lines) count += line.find(part) != line.npos ? 1 : 0;
  return count;
}

// Calibrated scales of KV, as llm-compressor, vLLM, ModelOpt and older tools name them, beside
// weights in bf16. Other scales have no place there.
TEST(KvScales, AreIgnoredAndSaid) {
  const char* name = "qwen3-group2-tied";
  const GoldenCopy copy(name);
  const std::string attention = "model.layers.0.self_attn.";
  copy.add_scalars({attention + "k_scale", attention + "v_scale", attention + "kv_scale",
                    attention + "k_proj.k_scale", attention + "v_proj.v_scale",
                    attention + "k_proj.output_scale"});
  const std::string note = "6 scales of keys and values (k_scale, v_scale) are not read";
  const EngineOptions options = copy.options();
  EXPECT_EQ(count_with({check_model(options).weights}, note), 1u);
  EXPECT_EQ(count_with(LLM(options).notes(), note), 1u);
  EXPECT_LT(copy.nmse(), testing::read_golden(name).bf16_nmse);
  EXPECT_EQ(count_with({check_model(testing::tiny_options(name)).weights}, "scales"), 0u);
  copy.add_scalars({"model.layers.0.mlp.down_proj.output_scale"});
  EXPECT_EQ(count_with(check_model(options).problems, "mlp.down_proj.output_scale"), 1u);
}

// The model's config.json says "tied", but its weights have a head of their own.
TEST(TiedHead, ADifferentHeadIsUsedAndSaid) {
  const char* name = "llama-group1-default";
  const GoldenCopy copy(name);
  copy.set("tie_word_embeddings", true);
  EXPECT_LT(copy.nmse(), testing::read_golden(name).bf16_nmse);
  const EngineOptions options = copy.options();
  EXPECT_EQ(count_with(LLM(options).warnings(), "lm_head.weight differs from"), 1u);
  EXPECT_EQ(count_with(check_model(options).warnings, "lm_head.weight differs from"), 1u);
  // Plan and summary count the memory of both, as without the key.
  const EngineOptions untied = testing::tiny_options(name);
  EXPECT_FALSE(summarize_model(options.model).tied_embeddings);
  EXPECT_EQ(summarize_model(options.model).weight_bytes,
            summarize_model(untied.model).weight_bytes);
  EXPECT_EQ(plan_memory(options).device_used_bytes(), plan_memory(untied).device_used_bytes());
}

TEST(TiedHead, ARepeatedEmbeddingStaysTied) {
  const char* name = "qwen3-group2-tied";
  const GoldenCopy copy(name);
  copy.add_head();
  EXPECT_LT(copy.nmse(), testing::read_golden(name).bf16_nmse);
  const EngineOptions options = copy.options();
  EXPECT_TRUE(LLM(options).warnings().empty());
  EXPECT_TRUE(summarize_model(options.model).tied_embeddings);
  EXPECT_EQ(plan_memory(options).device_used_bytes(),
            plan_memory(testing::tiny_options(name)).device_used_bytes());
}

// A difference in the last byte alone is one.
TEST(TiedHead, IsComparedToItsEnd) {
  const char* name = "llama-heads8-tied";
  const GoldenCopy copy(name);
  const fs::path path = fs::path(testing::tiny_options(name).model) / "model.safetensors";
  const std::string file = read_file(path);
  for (const SafetensorsEntry& entry :
       parse_safetensors_header(std::as_bytes(std::span(file)), "weights").tensors) {
    if (entry.name != "model.embed_tokens.weight") continue;
    std::string bytes = file.substr(entry.begin, entry.end - entry.begin);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    copy.add_head(bytes);
  }
  EXPECT_FALSE(summarize_model(copy.options().model).tied_embeddings);
}

// A tokenizer whose ids 0 to 255 are bytes, and a model with room for 300 tokens.
class EndTokens : public ::testing::Test {
 protected:
  EndTokens() {
    json file = testing::tiny_tokenizer();
    file["added_tokens"] = {testing::added_token(256, "<s>", true),
                            testing::added_token(257, "</s>", true),
                            testing::added_token(301, "<far>", true)};
    dir_.write("tokenizer.json", file.dump());
    config_.vocab_size = 310;
  }

  // The warnings for a tokenizer_config.json.
  std::vector<std::string> reconcile(const std::string& tokenizer_config) {
    dir_.write("tokenizer_config.json", tokenizer_config);
    return reconcile_tokenizer(Tokenizer::load(dir_.path()), config_);
  }

  using Ids = std::vector<int32_t>;
  TempDir dir_;
  ModelConfig config_;
};

TEST_F(EndTokens, AreThoseOfAllFiles) {
  config_.eos_ids = {65};
  EXPECT_TRUE(reconcile(R"({"eos_token": "</s>"})").empty());
  EXPECT_EQ(config_.eos_ids, (Ids{65, 257}));
  EXPECT_TRUE(reconcile(R"({"eos_token": {"content": "</s>"}})").empty());
  EXPECT_EQ(config_.eos_ids, (Ids{65, 257})) << "once";
}

TEST_F(EndTokens, OfOldFilesStandInTheMap) {
  dir_.write("special_tokens_map.json", R"({"eos_token": "</s>", "bos_token": "<s>"})");
  EXPECT_TRUE(reconcile("{}").empty());
  EXPECT_EQ(config_.eos_ids, Ids{257});
  config_.eos_ids = {65};
  EXPECT_TRUE(reconcile(R"({"added_tokens_decoder": {}})").empty());
  EXPECT_EQ(config_.eos_ids, Ids{65}) << "as in transformers";
}

TEST_F(EndTokens, ThatEndNothingAreSaid) {
  config_.eos_ids = {65};
  EXPECT_EQ(count_with(reconcile(R"({"eos_token": "<end>"})"),
                       "eos_token \"<end>\" ends nothing: tokenizer.json has no such token"),
            1u);
  config_.vocab_size = 301;
  const std::vector<std::string> far = reconcile(R"({"eos_token": "<far>"})");
  EXPECT_EQ(count_with(far, "its id 301 is outside of the vocabulary of 301"), 1u);
  EXPECT_EQ(config_.eos_ids, Ids{65});
  config_.vocab_size = 310;
  for (const int32_t id : {280, 305}) {
    config_.eos_ids = {65, id};
    EXPECT_EQ(
        reconcile("{}"),
        (std::vector<std::string>{"eos_token_id " + std::to_string(id) +
                                  " has no token in tokenizer.json and ends nothing; do "
                                  "config.json, generation_config.json and tokenizer.json belong "
                                  "to one model?"}));
  }
}

TEST_F(EndTokens, MissAltogetherIsSaid) {
  EXPECT_EQ(count_with(reconcile("{}"), "no end token: "), 1u);
  EXPECT_EQ(count_with(reconcile(R"({"eos_token": "<end>"})"), "no end token: "), 1u);
}

TEST_F(EndTokens, AreNotMoreThanThereIsRoomFor) {
  for (int32_t i = 0; i < static_cast<int32_t>(kMaxEosIds); ++i) config_.eos_ids.push_back(i);
  EXPECT_THROW(reconcile(R"({"eos_token": "</s>"})"), Error);
  config_.eos_ids.back() = 257;
  EXPECT_TRUE(reconcile(R"({"eos_token": "</s>"})").empty());
}

TEST_F(EndTokens, AndTwoChatTemplatesAreSaid) {
  config_.eos_ids = {65};
  const char* config = R"({"chat_template": "a"})";
  EXPECT_TRUE(reconcile(config).empty());
  dir_.write("chat_template.jinja", "a");
  EXPECT_TRUE(reconcile(config).empty()) << "the same twice";
  dir_.write("chat_template.jinja", "b");
  EXPECT_EQ(count_with(reconcile(config), "chat_template.jinja differs from"), 1u);
  EXPECT_TRUE(reconcile("{}").empty());
}

// tokenizer.json of this model adds nothing to a text.
TEST_F(EndTokens, AndBeginTokensThatAreNotAddedAreSaid) {
  config_.eos_ids = {65};
  const char* text = "add_bos_token is true, but tokenizer.json adds no bos_token";
  EXPECT_EQ(count_with(reconcile(R"({"bos_token": "<s>", "add_bos_token": true})"), text), 1u);
  EXPECT_TRUE(reconcile(R"({"bos_token": "<s>", "add_bos_token": false})").empty());
  EXPECT_TRUE(reconcile(R"({"add_bos_token": true})").empty()) << "no token to add";
}

}  // namespace
}  // namespace sluice
