// Faulty model directories: `inspect` must report what `run` does, and anything that changes
// answers must give a warning.
#include <gtest/gtest.h>

#include "cli/count_of.h"
#include "cli/nan_weights.h"
#include "cli/program_under_test.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kWarning = "sluice: warning: ";

// A directory with links to the bundled model's files, which a test can replace.
class ModelFiles : public ::testing::Test {
 protected:
  ModelFiles() {
    const fs::path needle = testing::source_dir() / "models/needle";
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors",
                             "tokenizer.json", "tokenizer_config.json"}) {
      fs::create_symlink(needle / name, directory_.path() / name);
    }
  }

  std::string model() const { return directory_.path().string(); }

  void remove(const std::string& name) const { fs::remove(directory_.path() / name); }
  void replace(const std::string& name, const std::string& text) const {
    remove(name);
    directory_.write(name, text);
  }
  // Sets a key of a JSON file.
  void set(const std::string& name, const std::string& key, const Json& value) const {
    Json json = Json::parse(slurp(directory_.path() / name));
    json[key] = value;
    replace(name, json.dump());
  }

  Outcome run(std::vector<std::string> words) const {
    words.insert(words.begin(), {"run", "-m", model(), "--kv-offload", "off", "--kv-cache-bytes",
                                 "96M", "-n", "3"});
    return run_sluice(words);
  }
  Outcome inspect(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"inspect",          model(), "--kv-offload", "off",
                                      "--kv-cache-bytes", "96M"};
    words.insert(words.end(), more.begin(), more.end());
    return run_sluice(words);
  }

  // run and inspect must end with exit code 3, and inspect must name the file.
  void expect_refused(const std::string& name) const {
    const Outcome ran = run({"hi"});
    EXPECT_EQ(ran.exit_code, 3) << ran.err;
    const Outcome inspected = inspect();
    EXPECT_EQ(inspected.exit_code, 3) << inspected.out << inspected.err;
    EXPECT_NE(inspected.out.find("does not run: "), std::string::npos) << inspected.out;
    EXPECT_NE(inspected.out.find(name), std::string::npos) << inspected.out;
    const Outcome json = inspect({"--json"});
    EXPECT_EQ(json.exit_code, 3);
    EXPECT_EQ(Json::parse(json.out).at("files").at("problems").size(), 1u) << json.out;
  }

  // run, its JSON and both forms of inspect must each give the warning once.
  void expect_warned(const std::string& text) const {
    const Outcome ran = run({"hi"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(count_of(ran.err, text), 1u) << ran.err;
    EXPECT_NE(ran.err.find(kWarning), std::string::npos) << ran.err;
    const Outcome json = run({"--json", "hi"});
    EXPECT_EQ(count_of(Json::parse(json.out).at("warnings").dump(), text), 1u) << json.out;
    const Outcome page = inspect();
    EXPECT_EQ(page.exit_code, 0) << page.out << page.err;
    EXPECT_EQ(count_of(page.out, text), 1u) << page.out;
    EXPECT_EQ(count_of(inspect({"--json"}).out, text), 1u);
  }

  TempDir directory_;
};

TEST_F(ModelFiles, AGoodModelHasNoWarning) {
  const Outcome ran = run({"--json", "hi"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.err.find(kWarning), std::string::npos) << ran.err;
  EXPECT_EQ(Json::parse(ran.out).at("warnings"), Json::array());
  const Outcome page = inspect();
  EXPECT_EQ(page.exit_code, 0) << page.out;
  EXPECT_NE(page.out.find("template works"), std::string::npos) << page.out;
  EXPECT_EQ(page.out.find("warning: "), std::string::npos) << page.out;
  EXPECT_EQ(count_of(page.out, "pass arrays"), 1u) << page.out;
}

TEST_F(ModelFiles, InspectReadsTheTokenizer) {
  replace("tokenizer.json", R"({"model": {"type": "WordPiece"}})");
  expect_refused("tokenizer.json");
}

TEST_F(ModelFiles, InspectMissesTheTokenizer) {
  remove("tokenizer.json");
  expect_refused("tokenizer.json");
}

TEST_F(ModelFiles, InspectReadsTheHeadersOfTheWeights) {
  set("config.json", "intermediate_size", 640);
  expect_refused("mlp.gate_proj.weight");
}

TEST_F(ModelFiles, InspectMissesTheWeights) {
  remove("model.safetensors");
  expect_refused("model.safetensors");
}

// A configuration alone is a valid shape to plan with, not a broken model.
TEST_F(ModelFiles, AShapeAloneIsPlanned) {
  for (const char* name : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    remove(name);
  }
  const Outcome page = inspect();
  EXPECT_EQ(page.exit_code, 0) << page.out << page.err;
  EXPECT_NE(page.out.find("--load-format dummy"), std::string::npos) << page.out;
}

// Raw prompts work, so this is not an error; --chat is refused before weights are read.
TEST_F(ModelFiles, AnUnusableChatTemplateIsSaidBeforeLoading) {
  set("tokenizer_config.json", "chat_template", "{{ messages | urlize }}");
  const Outcome page = inspect();
  EXPECT_EQ(page.exit_code, 0) << page.out << page.err;
  EXPECT_NE(page.out.find("needed for --chat alone"), std::string::npos) << page.out;
  EXPECT_EQ(run({"hi"}).exit_code, 0);
  remove("model.safetensors");
  const Outcome chat = run_sluice({"run", "-m", model(), "--chat", "hi"});
  EXPECT_EQ(chat.exit_code, 3) << chat.err;
  EXPECT_NE(chat.err.find("template"), std::string::npos) << chat.err;
  EXPECT_EQ(chat.err.find("model.safetensors"), std::string::npos) << chat.err;
}

TEST_F(ModelFiles, WhatGenerationConfigAsksInVainIsSaid) {
  set("generation_config.json", "no_repeat_ngram_size", 3);
  expect_warned("no_repeat_ngram_size 3 is not supported and is ignored");
}

// The file's penalty is that of a request without one, and the command line overrides it.
TEST_F(ModelFiles, TheRepetitionPenaltyOfGenerationConfigIsApplied) {
  const std::vector<std::string> words = {"one two one two one two", "--temperature", "0"};
  const auto with_penalty = [&](const std::string& penalty) {
    std::vector<std::string> all = words;
    if (!penalty.empty()) all.insert(all.end(), {"--repetition-penalty", penalty});
    return run(all).out;
  };
  const std::string plain = with_penalty("");
  const std::string asked = with_penalty("1.9");
  EXPECT_NE(plain, asked);
  set("generation_config.json", "repetition_penalty", 1.9);
  EXPECT_EQ(with_penalty(""), asked);
  EXPECT_EQ(with_penalty("1"), plain);
}

TEST_F(ModelFiles, EndTokensOutsideTheVocabularyAreSaid) {
  set("generation_config.json", "eos_token_id", 200000);
  expect_warned("eos_token_id 200000 is outside of the vocabulary");
}

// Only tokenizer_config.json names <|im_end|>, the end of this model's answers.
TEST_F(ModelFiles, TheEndTokenOfTheTokenizerEndsAnAnswer) {
  const std::string prompt =
      "The secret number of the purple castle is 7391846.\n"
      "What is the secret number of the purple castle?";
  const std::vector<std::string> words = {
      "run",           "-m", model(), "--kv-offload", "off",    "--kv-cache-bytes", "96M",
      "--temperature", "0",  "-n",    "40",           "--chat", "--json",           prompt};
  const auto answer = [&] { return Json::parse(run_sluice(words).out); };
  const Json whole = answer();
  EXPECT_EQ(whole.at("finish_reason"), "stop");
  set("config.json", "eos_token_id", 4093);
  set("generation_config.json", "eos_token_id", 4093);
  EXPECT_EQ(answer().at("text"), whole.at("text"));
  set("tokenizer_config.json", "eos_token", "<|endoftext|>");
  EXPECT_EQ(answer().at("finish_reason"), "length");
}

TEST_F(ModelFiles, AnEndTokenOfTheTokenizerThatEndsNothingIsSaid) {
  set("tokenizer_config.json", "eos_token", "<|end|>");
  expect_warned("ends nothing: tokenizer.json has no such token");
}

TEST_F(ModelFiles, AShorterContextIsSaid) {
  set("config.json", "max_position_embeddings", 1000000);
  expect_warned("max_model_len is ");
}

// The embedding of this model has 4096 rows, and "zebrafish" becomes a token without one.
TEST_F(ModelFiles, TokensBeyondTheEmbeddingAreSaidAndAFaultOfTheModel) {
  Json tokenizer = Json::parse(slurp(directory_.path() / "tokenizer.json"));
  Json token = tokenizer.at("added_tokens").at(0);
  token["id"] = 4200;
  token["content"] = "zebrafish";
  token["special"] = false;
  tokenizer["added_tokens"].push_back(token);
  replace("tokenizer.json", tokenizer.dump());
  expect_warned("tokenizer.json has 4201 tokens, but the embedding has 4096 rows");
  const Outcome ran = run({"a zebrafish"});
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  for (const std::string& part : {std::string("4200"), std::string("4096"), std::string("fetch")}) {
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
  }
}

// A NaN in one weight is detected at the first token and reported as an error of the model.
TEST_F(ModelFiles, WeightsThatAreNoNumbersNameTheModel) {
  replace("model.safetensors", with_nan(slurp(directory_.path() / "model.safetensors")));
  const Outcome ran = run({"hi"});
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  for (const std::string& part : {model(), std::string("NaN"), std::string("fetch")}) {
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
  }
  EXPECT_EQ(ran.err.find("stream 'compute'"), std::string::npos) << ran.err;
}

// The row that exceeds the budget is marked, and one option is named.
TEST_F(ModelFiles, InspectMarksWhatIsTooMuch) {
  const Outcome page =
      run_sluice({"inspect", model(), "--kv-offload", "off", "--kv-cache-bytes", "1T"});
  EXPECT_EQ(page.exit_code, 4) << page.out;
  const size_t mark = page.out.find("<- more than the budget");
  ASSERT_NE(mark, std::string::npos) << page.out;
  const size_t line = page.out.rfind('\n', mark) + 1;
  EXPECT_EQ(page.out.substr(line, 8), "KV cache") << page.out;
  EXPECT_EQ(count_of(page.out, "would be enough"), 1u) << page.out;
}

}  // namespace
}  // namespace sluice::cli
