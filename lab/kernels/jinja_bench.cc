// Rendering of a conversation of 1 MB with the chat templates of the tests, in few long messages
// and in many short ones. The bound is the time to parse the same conversation from JSON, which a
// server does before: a render must not take longer than a few times that.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "io/json_type.h"
#include "report.h"
#include "tokenizer/jinja/template.h"

namespace sluice::bench {
namespace {

using Json = nlohmann::ordered_json;

Json conversation(size_t num_bytes, size_t message_bytes) {
  Json messages = Json::array();
  const std::string words = "The quick brown f\u00f6x, \"quoted\" <tag>.\n";
  std::string content;
  while (content.size() < message_bytes) content += words;
  for (size_t done = 0; done < num_bytes; done += content.size()) {
    messages.push_back(
        {{"role", messages.size() % 2 == 0 ? "user" : "assistant"}, {"content", content}});
  }
  return {{"messages", messages}};
}

std::string read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void run(const std::string& name, size_t message_bytes) {
  const auto folder = std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/golden/tokenizer/templates";
  const jinja::Template chat(read(folder / (name + ".jinja")));
  const Json given = conversation(size_t{1} << 20, message_bytes);
  const Json settings = {{"bos_token", "<s>"}, {"add_generation_prompt", true}};
  const std::string body = given.dump();
  const Timing parse = measure([&] { return Json::parse(body).size(); });
  const Timing render = measure([&] { return chat.render({given, settings}).size(); });
  fmt::print(
      "{:<10} {:>6} messages: render {:7.2f} ms +- {:2.0f} %, parse of the JSON {:7.2f} ms\n", name,
      given.at("messages").size(), render.median * 1e3, render.spread() * 100, parse.median * 1e3);
}

}  // namespace
}  // namespace sluice::bench

int main() {
  sluice::bench::print_header("Jinja: 1 MB of messages");
  for (const char* name : {"chatml", "qwen2.5", "qwen3", "llama3.1"}) {
    for (const size_t bytes : {size_t{100}, size_t{1000}, size_t{100'000}}) {
      sluice::bench::run(name, bytes);
    }
  }
  return 0;
}
