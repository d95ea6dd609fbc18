// Chat templates and control tokens, in the program from outside.
#include <gtest/gtest.h>

#include "cli/tiny_program.h"
#include "io/file.h"
#include "io/json_type.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

// The chat template written out in the prompt gives the ids of --chat, but only with --special.
TEST_F(Program, ControlTokensInAPromptCountWhenAsked) {
  const auto ids = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"-n", "1", "--json"});
    const Outcome outcome = run_sluice(on_tiny("run", words));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return Json::parse(outcome.out).at("prompt_token_ids").get<std::vector<int>>();
  };
  const std::string by_hand = "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n";
  const auto chat = ids({"--chat", "Hi."});
  EXPECT_EQ(std::count(chat.begin(), chat.end(), 4094), 2);
  EXPECT_EQ(ids({"--special", by_hand}), chat);
  EXPECT_GT(ids({by_hand}).size(), chat.size());
  const auto injected = ids({"--chat", by_hand});
  EXPECT_EQ(std::count(injected.begin(), injected.end(), 4094), 2);
}

TEST_F(Program, ChatTemplatesAreRunOrRefused) {
  const std::string config = read_file(path("tiny/tokenizer_config.json"));
  const auto chat = [&](const std::string& jinja) {
    Json json = Json::parse(config);
    json["chat_template"] = jinja;
    directory_->write("tiny/tokenizer_config.json", json.dump());
    return run_sluice({"tokenize", "-m", path("tiny"), "--chat", "hi"});
  };
  const Outcome own = chat("{{ '<|im_start|>' + messages[0].content | upper }}!");
  EXPECT_EQ(own.out,
            run_sluice({"tokenize", "-m", path("tiny"), "--special", "<|im_start|>HI!"}).out);
  const Outcome refused = chat("{{ messages }}\n{{ lipsum() }}");
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.err.find("line 2: there is no function lipsum()"), std::string::npos)
      << refused.err;
  EXPECT_NE(refused.err.find("--special"), std::string::npos) << refused.err;
  directory_->write("tiny/tokenizer_config.json", config);
}

// A file replaces the model's template, and only variables that it reads may be given.
TEST_F(Program, ChatTemplatesComeFromAFile) {
  directory_->write("own.jinja", "<|im_start|>{{ messages[0].content }}{{ mood }}");
  const auto tokenize = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"tokenize", "-m", path("tiny"), "--json"});
    return Json::parse(run_sluice(words).out).at("token_ids").get<std::vector<int>>();
  };
  const std::vector<std::string> chat = {
      "--chat-template",        path("own.jinja"),     "--chat", "hi ",
      "--chat-template-kwargs", R"({"mood": "there"})"};
  const auto want = tokenize({"--special", "<|im_start|>hi there"});
  EXPECT_EQ(tokenize(chat), want);
  std::vector<std::string> words = chat;
  words.insert(words.end(), {"-n", "1", "--json"});
  const Json json = Json::parse(run_sluice(on_tiny("run", words)).out);
  EXPECT_EQ(json.at("prompt_token_ids").get<std::vector<int>>(), want);
}

TEST_F(Program, ChatTemplatesAreCheckedBeforeLoading) {
  const std::tuple<std::vector<std::string>, int, const char*> refused[] = {
      {{"--chat-template", path("absent.jinja")}, 3, "absent.jinja"},
      {{"--chat-template-kwargs", R"({"mood": 1})"}, 2, "never reads; it reads no variables"},
      {{"--chat-template-kwargs", "mood"}, 2, "JSON object"},
  };
  for (const auto& [words, exit_code, part] : refused) {
    for (const char* command : {"run", "tokenize"}) {
      std::vector<std::string> all = {command, "-m", path("tiny"), "--chat", "hi"};
      all.insert(all.end(), words.begin(), words.end());
      const Outcome outcome = run_sluice(all);
      EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
      EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    }
  }
}

}  // namespace
}  // namespace sluice::cli
