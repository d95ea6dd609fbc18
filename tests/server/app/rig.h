// App: a SluiceServer with the service of a tiny model behind it, whose engine a test can slow
// down, hold and break; and the clients of it.
//
// A byte is a token of that model, and all text is ASCII or, from the tokens above 127, U+FFFD.
// Used by the tests of the server. Thread rule: one thread makes and destroys an App; any thread
// may call its other members.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "io/json_type.h"
#include "server/app/sluice_server.h"
#include "server/metrics_text.h"
#include "server/raw_client.h"
#include "service/engine_service.h"
#include "support/sanitizer.h"
#include "support/source_dir.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice::testing {

using Json = nlohmann::ordered_json;
using http::RawClient;
using std::chrono::milliseconds;

inline constexpr const char* kCompletions = "/v1/completions";

// The longest wait for what must happen: room for a machine that is many times slower.
inline constexpr milliseconds kSoon{60'000};

template <typename Condition>
bool happens_soon(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kSoon;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// The clock of an engine, which it asks twice or three times in a step.
struct Brake {
  // Of each question; a step has two or three.
  std::atomic<int> pause_ms{0};
  // The engine stands still until the test lets it go; the destructor of App does.
  std::atomic<bool> is_held{false};
  // The next step throws, and the service is dead.
  std::atomic<bool> is_broken{false};

  int64_t now_ns() const {
    std::this_thread::sleep_for(milliseconds(pause_ms));
    while (is_held) std::this_thread::sleep_for(milliseconds(1));
    if (is_broken) throw std::runtime_error("the clock stopped");
    return std::chrono::steady_clock::now().time_since_epoch().count();
  }
};

// Prompts of up to 512 tokens, of which a step computes 64.
inline EngineOptions app_engine() {
  EngineOptions options = tiny_options("qwen3-group2-tied");
  options.chat_template = source_dir() / "tests/golden/tokenizer/templates/chatml.jinja";
  options.prefill_chunk_tokens = 64;
  options.max_num_batched_tokens = 64;
  return options;
}

struct AppOptions {
  EngineOptions engine = app_engine();
  RankThreads::MakeDevice make_device = nullptr;  // of ranks after the first; null: the usual ones
  ServiceLimits limits;
  http::Limits http;
  server::GateOptions gate;
  std::function<void(const metrics::RequestLogEntry&)> log;
  bool log_text = false;
  std::optional<ToolFormat> tool_format;
  bool has_page = true;
  std::vector<std::string> model_names = {"tiny", "alias"};
};

// Of an App that cuts answers after this time.
inline AppOptions cut_after(std::chrono::milliseconds time) {
  AppOptions options;
  options.http.answer_time = time;
  return options;
}

class App {
 public:
  // Listens on a free port; until `serve` it is a server that loads. The model has two names.
  explicit App(const AppOptions& options = {}) : options_(options) {
    server = std::make_unique<server::SluiceServer>(
        server::SluiceServerOptions{.port = 0,
                                    .limits = options.http,
                                    .gate = options.gate,
                                    .model_directory = options.engine.model,
                                    .chat_template = options.engine.chat_template,
                                    .model_names = options.model_names,
                                    .tool_format = options.tool_format,
                                    .version = "1.2.3",
                                    .has_page = options.has_page,
                                    .log = options.log,
                                    .log_text = options.log_text},
        false);
  }
  ~App() {
    brake.is_held = false;
    server.reset();
  }

  // Loads the model.
  App& serve() {
    service = std::make_unique<EngineService>(
        [this] {
          return std::make_unique<LlmEngine>(
              options_.engine,
              LlmEngine::Parts{
                  .device = make_test_device({.num_threads = 2}),
                  .adjust_plan = [](EnginePlan& plan) { plan.passes.min_watched_rows = 1; },
                  .now_ns = [this] { return brake.now_ns(); },
                  .make_device = options_.make_device});
        },
        options_.limits);
    server->serve(*service);
    return *this;
  }

  // Whether no request holds or waits for memory. REQUIRES: serve.
  bool is_free() const {
    const ServiceSnapshot now = service->snapshot();
    return now.num_running == 0 && now.num_waiting == 0 && now.kv.num_used == 0;
  }
  // The whole answer, on a connection of its own.
  std::string get(const std::string& path) const {
    RawClient client(server->port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read_answer();
  }
  // /metrics, with the labels that are not the model's.
  MetricsText metrics() const {
    const std::string page = get("/metrics");
    return MetricsText(page.substr(page.find("\r\n\r\n") + 4), options_.model_names[0]);
  }
  // A sample of /metrics, as MetricsText names it; fails the test if there is none.
  double metric(const std::string& sample) const { return metrics().at(sample); }
  // Expects a sample to have a value soon: an answer is counted after its last byte was sent.
  void expect_soon(const std::string& sample, double value) const {
    double seen = -1;  // no such sample
    EXPECT_TRUE(happens_soon([&] {
      const MetricsText text = metrics();
      const auto found = text.samples().find(sample);
      if (found != text.samples().end()) seen = found->second;
      return seen == value;
    })) << sample
        << " is " << seen << " instead of " << value;
  }

  Brake brake;
  std::unique_ptr<EngineService> service;
  std::unique_ptr<server::SluiceServer> server;

 private:
  const AppOptions options_;
};

// A request as it is sent; `fields` are whole lines.
inline std::string post_text(const std::string& path, const std::string& body,
                             const std::string& fields = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + fields +
         "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}
inline std::string post(const App& app, const std::string& path, const Json& body) {
  RawClient client(app.server->port());
  client.send(post_text(path, body.dump()));
  return client.read_answer();
}
// The JSON behind the head; discarded if there is none.
inline Json body_of(const std::string& answer) {
  const size_t at = answer.find("\r\n\r\n");
  return Json::parse(at == std::string::npos ? "" : answer.substr(at + 4), nullptr, false);
}

// A stream: the data of its events, "[DONE]" included, once all chunks have come.
inline std::vector<std::string> read_events(RawClient& client) {
  std::string text = client.read_until("\r\n0\r\n\r\n");
  if (const size_t head = text.find("\r\n\r\n"); text.starts_with("HTTP/")) {
    EXPECT_EQ(http::status_of(text), 200) << text;
    text.erase(0, head + 4);
  }
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const size_t line = text.find("\r\n", at);
    if (!std::isxdigit(static_cast<unsigned char>(text[at]))) return {};
    const size_t size = std::stoul(text.substr(at, line - at), nullptr, 16);
    plain += text.substr(line + 2, size);
    at = line + 2 + size + 2;
    if (size == 0) break;
  }
  std::vector<std::string> events;
  for (size_t at = plain.find("data: "); at != std::string::npos; at = plain.find("data: ", at)) {
    const size_t end = plain.find("\n\n", at);
    events.push_back(plain.substr(at + 6, end - at - 6));
    at = end;
  }
  return events;
}
// Whether a stream, of which some may have been read, ends as it should.
inline bool ends_done(RawClient& client) {
  return client.read_until("\r\n0\r\n\r\n").ends_with("data: [DONE]\n\n\r\n0\r\n\r\n");
}
// The events of a request, on a connection of its own.
inline std::vector<std::string> stream(const App& app, const std::string& path, Json body) {
  body["stream"] = true;
  RawClient client(app.server->port());
  client.send(post_text(path, body.dump()));
  return read_events(client);
}

// Of a stream's choices: the texts, and the reasons of their ends.
struct Streamed {
  std::vector<std::string> texts;
  std::vector<std::string> reasons;
  Json usage;
};
inline Streamed joined(const std::vector<std::string>& events, size_t num_choices) {
  Streamed all{std::vector<std::string>(num_choices), std::vector<std::string>(num_choices), {}};
  EXPECT_FALSE(events.empty());
  EXPECT_EQ(events.empty() ? "" : events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    for (const Json& choice : event.value("choices", Json::array())) {
      const size_t index = choice.at("index").get<size_t>();
      const Json& text = choice.contains("delta") ? choice.at("delta").value("content", Json())
                                                  : choice.at("text");
      if (text.is_string()) all.texts.at(index) += text.get<std::string>();
      const Json& reason = choice.at("finish_reason");
      if (reason.is_string()) all.reasons.at(index) += reason.get<std::string>();
    }
    if (event.contains("usage") && event.at("usage").is_object()) all.usage = event.at("usage");
  }
  return all;
}

// A request that takes long, once the brake is on: 450 tokens after a prompt of 50.
inline Json long_request(bool is_stream) {
  return {{"prompt", std::string(50, 'x')},
          {"max_tokens", 450},
          {"ignore_eos", true},
          {"seed", 1},
          {"stream", is_stream}};
}

}  // namespace sluice::testing
