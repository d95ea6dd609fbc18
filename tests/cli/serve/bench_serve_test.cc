// What bench serve computes from answers, on inputs written by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/completion.h"
#include "cli/bench/serve/quantile.h"
#include "cli/bench/serve/request_sizes.h"
#include "io/json_type.h"

namespace sluice::cli {
namespace {

using namespace std::chrono_literals;

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

std::string text_event(const std::string& text) {
  return event(fmt::format(R"({{"choices":[{{"index":0,"text":"{}"}}]}})", text));
}

TEST(Completions, AStreamIsJoined) {
  // The second chunk has two events, and the third is cut between two pieces.
  const std::string cut = chunk(text_event("zw"));
  const Completion completion =
      read_completion(stream_of({chunk(text_event("")), chunk(text_event("a") + text_event("x")),
                                 cut.substr(0, 20), cut.substr(20), chunk(text_event("b")),
                                 chunk(": ping\n\n" + event("[DONE]")) + "0\r\n\r\n"}));
  EXPECT_TRUE(completion.is_whole);
  EXPECT_EQ(completion.status, 200);
  EXPECT_EQ(completion.text, "axzwb");
  EXPECT_EQ(completion.last_byte, at(6));
  EXPECT_EQ(completion.arrivals, (std::vector<LoadTime>{at(2), at(2), at(4), at(5)}));
}

TEST(Completions, WhatIsNotWholeIsSaid) {
  const std::string first = chunk(text_event("a"));
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
  const auto json =
      nlohmann::json::parse(completion_json({.prompt = {1, 2}, .max_tokens = 3, .seed = 4}));
  EXPECT_EQ(json.at("prompt"), (std::vector<int>{1, 2}));
  EXPECT_EQ(json.at("max_tokens"), 3);
  EXPECT_EQ(json.at("seed"), 4);
  EXPECT_EQ(json.at("top_k"), 0);
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
