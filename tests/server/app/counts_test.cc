// The page of metrics against the log of the same run, line by line, and with hostile names.
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::Json;
using testing::kCompletions;
using testing::long_request;
using testing::MetricsText;
using testing::milliseconds;
using testing::post;
using testing::post_text;

// Answers, refusals before and behind the gate, errors, and clients that leave.
void run_mixed(App& app) {
  for (int i = 0; i < 10; ++i) {
    const Json request = {{"prompt", std::string(static_cast<size_t>(20 + 8 * i), 'a')},
                          {"max_tokens", 1 + i},
                          {"n", 1 + i % 3},
                          {"ignore_eos", true}};
    if (i % 2 == 0) {
      post(app, kCompletions, request);
    } else {
      testing::stream(app, kCompletions, request);
    }
  }
  post(app, "/v1/chat/completions",
       {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 3}});
  post(app, "/tokenize", {{"prompt", "abc"}});
  post(app, kCompletions, {{"prompt", "a"}, {"n", 0}});
  post(app, kCompletions, {{"prompt", "a"}, {"model", "none"}});
  post(app, "/none", {});
  app.get(kCompletions);
  app.get("/%zz");
  app.brake.pause_ms = 5;
  for (const bool is_stream : {false, true}) {
    RawClient client(app.server->port());
    const int64_t before = app.service->snapshot().stats.num_generated_tokens;
    client.send(post_text(kCompletions, long_request(is_stream).dump()));
    EXPECT_TRUE(testing::happens_soon(
        [&] { return app.service->snapshot().stats.num_generated_tokens > before + 2; }));
  }
  app.brake.pause_ms = 0;
  EXPECT_TRUE(testing::happens_soon([&] { return app.is_free(); }));
  app.expect_soon("sluice:requests_aborted_total{reason=disconnect}", 2);
}

TEST(AppCounts, EqualTheLog) {
  std::mutex mutex;
  std::vector<metrics::RequestLogEntry> lines;
  AppOptions options;
  options.log = [&](const metrics::RequestLogEntry& entry) {
    const std::lock_guard lock(mutex);
    lines.push_back(entry);
  };
  App app(options);
  app.serve();
  run_mixed(app);
  const MetricsText text = app.metrics();
  app.server.reset();

  std::map<std::string, double> expected;
  metrics::RequestSummary sum;
  double num_aborted = 0, num_reached = 0;
  for (const metrics::RequestLogEntry& line : lines) {
    ++expected["sluice:http_requests_total{route=" + line.route +
               ",code=" + std::to_string(line.status) + "}"];
    num_aborted += line.aborted ? 1 : 0;
    if (!line.summary) continue;
    ++num_reached;
    sum.num_prompt_tokens += line.summary->num_prompt_tokens;
    sum.num_cached_tokens += line.summary->num_cached_tokens;
    sum.num_generated_tokens += line.summary->num_generated_tokens;
  }
  EXPECT_EQ(lines.size(), 19U);
  EXPECT_EQ(num_reached, 13);
  EXPECT_EQ(expected.size(), 9U);
  for (const auto& [sample, count] : expected) EXPECT_EQ(text.at(sample), count) << sample;
  EXPECT_EQ(text.at("vllm:prompt_tokens_total"), sum.num_prompt_tokens);
  EXPECT_EQ(text.at("vllm:prompt_tokens_cached_total"), sum.num_cached_tokens);
  EXPECT_EQ(text.at("vllm:generation_tokens_total"), sum.num_generated_tokens);
  EXPECT_EQ(text.at("sluice:requests_aborted_total{reason=disconnect}"), num_aborted);
  EXPECT_EQ(text.at("sluice:prefill_remaining_tokens"), 0);
  EXPECT_EQ(text.at("vllm:num_requests_running"), 0);
  double num_ended = 0;
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    num_ended += text.at("vllm:request_success_total{finished_reason=" + std::string(reason) + "}");
  }
  EXPECT_EQ(num_ended, app.service->snapshot().num_accepted);
  EXPECT_EQ(num_ended, text.at("vllm:e2e_request_latency_seconds_count"));
}

TEST(AppCounts, DraftsHaveTheNamesOfVllm) {
  AppOptions options;
  options.engine.speculative.method = SpeculativeMethod::kNgram;
  options.engine.speculative.num_tokens = 3;
  App app(options);
  app.serve();
  post(app, kCompletions, {{"prompt", "abcabcabcabc"}, {"max_tokens", 40}, {"ignore_eos", true}});
  const SpeculationCounts counts = app.service->snapshot().stats.speculation.value();
  const MetricsText text = app.metrics();
  EXPECT_EQ(text.at("vllm:spec_decode_num_drafts_total"), counts.num_drafts);
  EXPECT_EQ(text.at("vllm:spec_decode_num_draft_tokens_total"), counts.num_draft_tokens);
  EXPECT_EQ(text.at("vllm:spec_decode_num_accepted_tokens_total"), counts.num_accepted_tokens);
  EXPECT_EQ(text.at("vllm:generation_tokens_total"), 40);
}

// A page that a name breaks would hide every metric.
TEST(AppCounts, HostileNamesOfModelsKeepThePage) {
  const std::pair<std::string, std::string> names[] = {
      {"a\"} 1\nsluice:fake_total 1\n#", "a\"} 1\nsluice:fake_total 1\n#"},
      {"back\\slash\\n", "back\\slash\\n"},
      {"tab\tand\rreturn", "tab\tand\rreturn"},
      {"\xff\xfe", "\uFFFD\uFFFD"},
      {"{{name}}=\"\"", "{{name}}=\"\""},
      {"", ""}};
  for (const auto& [name, shown] : names) {
    App app({.model_names = {name}});
    app.serve();
    Json request = {{"prompt", "a"}, {"max_tokens", 1}};
    EXPECT_EQ(status_of(post(app, kCompletions, request)), 200);
    const std::string page = app.get("/metrics");
    const MetricsText text(page.substr(page.find("\r\n\r\n") + 4), shown);
    EXPECT_EQ(text.at("vllm:prompt_tokens_total"), 1) << shown;
    EXPECT_FALSE(text.samples().contains("sluice:fake_total"));
    EXPECT_EQ(status_of(app.get("/v1/models")), 200);
  }
}

}  // namespace
}  // namespace sluice::server
