// Lines of the log: exact texts, values that try to break a line, and rates from counts.
#include <algorithm>
#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "io/json_type.h"
#include "server/metrics/request_log.h"
#include "server/metrics/status_line.h"

namespace sluice::metrics {
namespace {

// 2026-11-23 12:34:56.25 UTC.
LogTime noon() { return LogTime(std::chrono::milliseconds(1'795'437'296'250)); }

RequestLogEntry completion() {
  return {.time = noon(),
          .id = "cmpl-7",
          .route = "/v1/completions",
          .status = 200,
          .total_s = 3.9,
          .summary = RequestSummary{.num_prompt_tokens = 1000,
                                    .num_cached_tokens = 512,
                                    .num_generated_tokens = 20,
                                    .queue_s = 0.25,
                                    .prefill_s = 1.5,
                                    .decode_s = 2.0625,
                                    .outcome = Outcome::kStop}};
}

TEST(RequestLog, HasALineForARequest) {
  EXPECT_EQ(request_log_text(completion()),
            "2026-11-23T12:34:56.250Z cmpl-7 /v1/completions 200 prompt=1000 cached=512 "
            "generated=20 queue=0.250s prefill=1.500s decode=2.062s total=3.900s end=stop");
  EXPECT_EQ(request_log_json(completion()),
            R"({"time":"2026-11-23T12:34:56.250Z","event":"request","id":"cmpl-7",)"
            R"("route":"/v1/completions","status":200,"prompt_tokens":1000,"cached_tokens":512,)"
            R"("generated_tokens":20,"queue_s":0.25,"prefill_s":1.5,"decode_s":2.0625,)"
            R"("total_s":3.9,"end":"stop"})");
}

TEST(RequestLog, LeavesOutWhatDidNotHappen) {
  RequestLogEntry entry{.time = noon(), .id = "a", .route = "/tokenize", .status = 400};
  EXPECT_EQ(request_log_text(entry), "2026-11-23T12:34:56.250Z a /tokenize 400 total=0.000s");
  EXPECT_EQ(request_log_json(entry),
            R"({"time":"2026-11-23T12:34:56.250Z","event":"request","id":"a",)"
            R"("route":"/tokenize","status":400,"total_s":0.0})");
  entry.summary = RequestSummary{.num_prompt_tokens = 5, .outcome = Outcome::kAbort};
  entry.aborted = AbortReason::kDisconnect;
  EXPECT_EQ(request_log_text(entry),
            "2026-11-23T12:34:56.250Z a /tokenize 400 prompt=5 cached=0 generated=0 total=0.000s "
            "end=abort aborted=disconnect");
  EXPECT_NE(request_log_json(entry).find(R"("end":"abort","aborted":"disconnect"})"),
            std::string::npos);
  entry.skipped_tools = "a,b\nc";
  EXPECT_TRUE(request_log_text(entry).ends_with(" aborted=disconnect skipped_tools=" +
                                                log_word(entry.skipped_tools)));
  EXPECT_NE(request_log_json(entry).find(R"("aborted":"disconnect","skipped_tools":"a,b\nc"})"),
            std::string::npos);
}

// That is how a wrong base URL is found. Both are a client's: cut, and one word each.
TEST(RequestLog, HasThePathThatNoRouteHas) {
  RequestLogEntry entry{.time = noon(), .id = "a", .route = "unknown", .status = 404};
  entry.method = "POST";
  entry.path = "/api/v1/chat";
  EXPECT_EQ(request_log_text(entry),
            "2026-11-23T12:34:56.250Z a unknown 404 method=POST path=/api/v1/chat total=0.000s");
  EXPECT_EQ(request_log_json(entry),
            R"({"time":"2026-11-23T12:34:56.250Z","event":"request","id":"a","route":"unknown",)"
            R"("method":"POST","path":"/api/v1/chat","status":404,"total_s":0.0})");
  entry.path = "/a b\n\x1b[31m\"end=stop" + std::string(5000, 'x');
  const std::string text = request_log_text(entry);
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 6) << text;
  EXPECT_EQ(text.find_first_of("\n\x1b"), std::string::npos) << text;
  EXPECT_LT(text.size(), 300U);
  EXPECT_LT(request_log_json(entry).size(), 400U);
  EXPECT_EQ(nlohmann::json::parse(request_log_json(entry)).at("status"), 404);
}

TEST(RequestLog, KeepsItsFormWithAnyId) {
  RequestLogEntry entry = completion();
  for (const char* id : {"a b", "a\nb", "a\r\x1b[31m", "\xff\xc3", "\"},{\"", ""}) {
    entry.id = id;
    const std::string text = request_log_text(entry);
    EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 11) << text;
    EXPECT_EQ(text.find_first_of("\n\r\x1b\xff\xc3"), std::string::npos) << text;
    const std::string json = request_log_json(entry);
    EXPECT_EQ(json.find('\n'), std::string::npos) << json;
    EXPECT_EQ(nlohmann::json::parse(json).at("status"), 200) << json;
    EXPECT_EQ(nlohmann::json::parse(json).size(), 13U) << json;
  }
}

TEST(RequestLog, WritesTimesBeforeTheEpochAndAtSeconds) {
  EXPECT_EQ(log_time_text(LogTime()), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(log_time_text(LogTime(std::chrono::milliseconds(-1))), "1969-12-31T23:59:59.999Z");
  EXPECT_EQ(log_seconds(0.1 + 0.2), 0.3);
}

TEST(StatusLine, HasTheWordsOfVllm) {
  Status status{.prompt_tokens_per_s = 1234.56,
                .generated_tokens_per_s = 78.94,
                .num_running = 3,
                .num_waiting = 2,
                .kv_usage = 0.755,
                .hit_rate = 0.5};
  const std::string start =
      "2026-11-23T12:34:56.250Z Engine 000: Avg prompt throughput: 1234.6 tokens/s, Avg generation "
      "throughput: 78.9 tokens/s, Running: 3 reqs, Waiting: 2 reqs, ";
  const std::string end = "GPU KV cache usage: 75.5%, Prefix cache hit rate: 50.0%";
  EXPECT_EQ(status_text(noon(), status), start + end);
  status.num_preemptions = 4;
  EXPECT_EQ(status_text(noon(), status), start + "Preemptions: 4, " + end);
  EXPECT_EQ(status_json(noon(), status),
            R"({"time":"2026-11-23T12:34:56.250Z","event":"status","prompt_tokens_per_s":1234.56,)"
            R"("generated_tokens_per_s":78.94,"running":3,"waiting":2,"preemptions":4,)"
            R"("kv_usage":0.755,"prefix_hit_rate":0.5})");
}

TEST(WarningLine, IsOneObject) {
  EXPECT_EQ(warning_json(noon(), "KV store: a\n\"b\""),
            R"({"time":"2026-11-23T12:34:56.250Z","event":"warning",)"
            R"("warning":"KV store: a\n\"b\""})");
}

TEST(StatusWatch, TurnsCountsIntoRates) {
  const TimePoint start;
  const auto at = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  StatusWatch watch(start);
  EngineReading engine{.num_running = 2,
                       .num_waiting = 1,
                       .num_preemptions = 1,
                       .num_blocks = 10,
                       .num_used_blocks = 5};
  TokenTotals tokens{.num_computed = 40, .num_cached = 60, .num_missed = 20, .num_generated = 20};
  const Status first = watch.next(at(10), tokens, engine).value();
  EXPECT_EQ(first.prompt_tokens_per_s, 4);
  EXPECT_EQ(first.generated_tokens_per_s, 2);
  EXPECT_EQ(first.num_running, 2);
  EXPECT_EQ(first.num_waiting, 1);
  EXPECT_EQ(first.num_preemptions, 1);
  EXPECT_EQ(first.kv_usage, 0.5);
  EXPECT_EQ(first.hit_rate, 0.75);
  // The same rate means twice the tokens in twice the time.
  tokens.num_computed += 80;
  tokens.num_generated += 40;
  const Status second = watch.next(at(30), tokens, engine).value();
  EXPECT_EQ(second.prompt_tokens_per_s, 4);
  EXPECT_EQ(second.generated_tokens_per_s, 2);
  EXPECT_EQ(second.num_preemptions, 0);
  EXPECT_EQ(second.hit_rate, 0.75);  // nothing was looked up
}

TEST(StatusWatch, IsSilentWhenIdle) {
  const TimePoint start;
  const auto at = [&](int seconds) { return start + std::chrono::seconds(seconds); };
  StatusWatch watch(start);
  EngineReading engine;
  TokenTotals tokens;
  EXPECT_FALSE(watch.next(at(1), tokens, engine));
  tokens.num_generated = 1;
  EXPECT_TRUE(watch.next(at(2), tokens, engine));
  EXPECT_EQ(watch.next(at(3), tokens, engine).value().generated_tokens_per_s, 0);
  EXPECT_FALSE(watch.next(at(4), tokens, engine));
  engine.num_waiting = 1;  // a request, but no tokens: something hangs
  EXPECT_TRUE(watch.next(at(5), tokens, engine));
  EXPECT_TRUE(watch.next(at(6), tokens, engine));
  engine.num_waiting = 0;
  EXPECT_FALSE(watch.next(at(7), tokens, engine));
}

}  // namespace
}  // namespace sluice::metrics
