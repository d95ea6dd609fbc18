// What the scenarios of bench serve compute from answers and pages of metrics, on inputs written by
// hand.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/bench/measure.h"
#include "cli/bench/serve/request_sizes.h"
#include "cli/bench/serve/scenario.h"
#include "cli/bench/serve/server_counts.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

using namespace std::chrono_literals;
using Arrivals = std::vector<Completion::Arrival>;

const LoadTime kStart = LoadClock::now();

LoadTime at(int ms) { return kStart + std::chrono::milliseconds(ms); }

// A chunked stream whose pieces end where the texts end; piece i came at i milliseconds.
ReceivedAnswer stream_of(const std::vector<std::string>& pieces) {
  ReceivedAnswer answer{.sent = at(0), .is_whole = true};
  answer.bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  int ms = 0;
  for (const std::string& piece : pieces) {
    answer.bytes += piece;
    answer.pieces.push_back({at(++ms), answer.bytes.size()});
  }
  return answer;
}

std::string chunk(const std::string& text) {
  return fmt::format("{:x}\r\n{}\r\n", text.size(), text);
}

std::string event(const std::string& data) { return "data: " + data + "\n\n"; }

std::string token_event(int index, const std::string& text, const std::string& ids,
                        const std::string& reason = "null") {
  return event(
      fmt::format(R"({{"choices":[{{"index":{},"text":"{}","token_ids":{},"finish_reason":{}}}]}})",
                  index, text, ids, reason));
}

const std::string kUsage =
    event(R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,)"
          R"("prompt_tokens_details":{"cached_tokens":4}}})");

TEST(Completions, AStreamIsJoinedByChoice) {
  // The second chunk has two events, and the third is cut between two pieces.
  const std::string cut = chunk(token_event(1, "zw", "[4,5]", "\"length\""));
  const Completion completion = read_completion(
      stream_of({chunk(event(R"({"choices":[{"index":0,"text":"","finish_reason":null}]})")),
                 chunk(token_event(0, "a", "[1]") + token_event(1, "x", "[2]")), cut.substr(0, 20),
                 cut.substr(20), chunk(token_event(0, "b", "[3]", "\"stop\"")),
                 chunk(": ping\n\n" + kUsage + event("[DONE]")) + "0\r\n\r\n"}));
  EXPECT_TRUE(completion.is_whole);
  EXPECT_EQ(completion.status, 200);
  EXPECT_EQ(completion.texts, (std::vector<std::string>{"ab", "xzw"}));
  EXPECT_EQ(completion.finish_reasons, (std::vector<std::string>{"stop", "length"}));
  EXPECT_EQ(completion.num_cached, 4);
  EXPECT_EQ(completion.num_generated, 5);
  EXPECT_NEAR(completion.whole_seconds(), 0.006, 1e-9);
  std::vector<std::pair<int64_t, int64_t>> arrivals;  // milliseconds, tokens
  for (const Completion::Arrival& arrival : completion.arrivals) {
    arrivals.emplace_back((arrival.time - kStart) / 1ms, arrival.num_tokens);
  }
  EXPECT_EQ(arrivals, (std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {2, 1}, {4, 2}, {5, 1}}));
}

TEST(Completions, WhatIsNotWholeIsSaid) {
  const std::string first = chunk(token_event(0, "a", "[1]"));
  EXPECT_FALSE(read_completion(stream_of({first + "0\r\n\r\n"})).is_whole) << "without [DONE]";
  const Completion failed = read_completion(
      stream_of({first + chunk(event(R"({"error":{"message":"it broke"}})") + event("[DONE]")) +
                 "0\r\n\r\n"}));
  EXPECT_FALSE(failed.is_whole);
  EXPECT_EQ(failed.fault, "it broke");
  ReceivedAnswer refusal{.is_whole = true};
  refusal.bytes = "HTTP/1.1 429 Too Many Requests\r\n\r\n{\"error\":{\"message\":\"later\"}}";
  EXPECT_EQ(read_completion(refusal).status, 429);
  EXPECT_EQ(read_completion(refusal).fault, "later");
  EXPECT_FALSE(read_completion(refusal).is_whole);
  EXPECT_EQ(read_completion({}).status, 0);
}

TEST(Completions, RequestsSayEverythingThatTheModelWouldSayOtherwise) {
  const auto json = nlohmann::json::parse(
      completion_json({.prompt = {1, 2}, .max_tokens = 3, .seed = 4, .n = 2, .stream = false}));
  EXPECT_EQ(json.at("prompt"), (std::vector<int>{1, 2}));
  EXPECT_EQ(json.at("max_tokens"), 3);
  EXPECT_EQ(json.at("seed"), 4);
  EXPECT_EQ(json.at("n"), 2);
  EXPECT_EQ(json.at("top_k"), 0);
  EXPECT_FALSE(json.contains("stream_options")) << "refused without stream";
}

const std::string kPage = R"(# HELP vllm:prompt_tokens_total Prompt tokens.
vllm:num_requests_running{model_name="a{}\"b",engine="0"} 3
vllm:num_requests_waiting{model_name="m",engine="0"} 2
vllm:cache_config_info{model_name="m",engine="0",block_size="64",num_gpu_blocks="7"} 1
vllm:num_preemptions_total{model_name="m",engine="0"} 5
sluice:kv_bytes{model_name="m",engine="0",place="host",state="used"} 1e+06
sluice:kv_bytes{model_name="m",engine="0",place="host",state="free"} 9
sluice:kv_bytes{model_name="m",engine="0",place="device",state="used"} 24
vllm:prompt_tokens_total{model_name="m",engine="0"} 100
vllm:prompt_tokens_cached_total{model_name="m",engine="0"} 40
vllm:generation_tokens_total{model_name="m",engine="0"} 11
sluice:requests_aborted_total{model_name="m",engine="0",reason="disconnect"} 6
sluice:requests_aborted_total{model_name="m",engine="0",reason="drain"} 1
)";

TEST(ServerCountsOfAPage, AreReadAndSubtracted) {
  const ServerCounts counts = read_counts(kPage);
  EXPECT_EQ(counts.num_running, 3);
  EXPECT_EQ(counts.num_waiting, 2);
  EXPECT_EQ(counts.block_tokens, 64);
  EXPECT_EQ(counts.used_kv_bytes, 1'000'024);
  EXPECT_EQ(counts.num_computed_tokens(), 60);
  EXPECT_EQ(counts.num_generated_tokens, 11);
  EXPECT_EQ(counts.num_aborted, 7);
  EXPECT_FALSE(counts.is_idle());
  const ServerCounts before{.num_prompt_tokens = 30, .num_cached_tokens = 10, .num_running = 1};
  EXPECT_EQ(counted_between(before, counts).num_computed_tokens(), 40);
  EXPECT_EQ(counted_between(before, counts).num_running, 3);
  EXPECT_TRUE(ServerCounts{}.is_idle());
  EXPECT_THROW(read_counts("vllm:num_requests_running{} 3\n"), Error);
}

// Tokens at 10, 20 and 50 ms, two of them at 50.
const Arrivals kArrivals = {{at(10), 1}, {at(20), 1}, {at(50), 2}};

TEST(Arrivals, RatesAndGapsAreOfAnInterval) {
  EXPECT_NEAR(tokens_per_second(kArrivals, at(10), at(50)), 3 / 0.040, 1e-6);
  EXPECT_NEAR(tokens_per_second(kArrivals, at(0), at(40)), 2 / 0.040, 1e-6);
  EXPECT_NEAR(longest_gap(kArrivals, at(10), at(50)), 0.030, 1e-9);
  EXPECT_NEAR(longest_gap(kArrivals, at(10), at(30)), 0.010, 1e-9) << "the last one is cut";
  EXPECT_NEAR(longest_gap(kArrivals, at(50), at(150)), 0.100, 1e-9) << "nothing came";
  EXPECT_NEAR(longest_gap(kArrivals, at(0), at(150)), 0.100, 1e-9);
}

TEST(Arrivals, PartsHaveAsManyTokensEach) {
  // Nine tokens: the first after the prompt, four with 1 ms each, four with 3 ms each.
  Arrivals arrivals = {{at(100), 1}};
  for (int i = 1; i <= 4; ++i) arrivals.push_back({at(100 + i), 1});
  for (int i = 1; i <= 4; ++i) arrivals.push_back({at(104 + 3 * i), 1});
  const std::vector<double> halves = token_seconds_by_part(arrivals, 2);
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_NEAR(halves[0], 0.001, 1e-9);
  EXPECT_NEAR(halves[1], 0.003, 1e-9);
  EXPECT_EQ(token_seconds_by_part({{at(0), 1}, {at(8), 8}}, 8).size(), 8u) << "one event for all";
}

TEST(Quantile, IsAValueThatOccurs) {
  const std::vector<double> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(quantile(values, 0.5), 3);
  EXPECT_EQ(quantile(values, 0.99), 5);
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile({7}, 0.5), 7);
}

TEST(RequestSizes, AreTheSameForTheSameSeed) {
  const SizeRange range{.num_requests = 50, .least_tokens = 3, .most_tokens = 9, .seed = 5};
  const std::vector<RequestSize> sizes = draw_sizes(range);
  ASSERT_EQ(sizes.size(), 50u);
  const GenerateWork work = make_generate_work(sizes, 100, 7);
  int64_t num_tokens = 0, longest = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_GE(sizes[i].prompt_tokens, 3);
    EXPECT_LE(sizes[i].output_tokens, 9);
    EXPECT_EQ(sizes[i].prompt_tokens, draw_sizes(range)[i].prompt_tokens);
    EXPECT_EQ(std::get<std::vector<int32_t>>(work.prompts[i]),
              random_prompt(sizes[i].prompt_tokens, 100, 7 + i));
    EXPECT_EQ(work.params[i].max_tokens, sizes[i].output_tokens);
    num_tokens += sizes[i].output_tokens;
    longest = std::max<int64_t>(longest, sizes[i].prompt_tokens + sizes[i].output_tokens);
  }
  EXPECT_EQ(num_output_tokens(sizes), num_tokens);
  EXPECT_EQ(longest_request(sizes), longest);
}

}  // namespace
}  // namespace sluice::cli
