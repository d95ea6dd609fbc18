// Metrics of requests against a log of requests whose numbers were worked out by hand, and under
// threads that add and read at once.
#include "server/metrics/request_metrics.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/metrics/request_life.h"
#include "server/metrics_text.h"

namespace sluice::metrics {
namespace {

// Times are multiples of 1/4 s, so that sums of them are exact.
TimePoint at(double seconds) {
  return TimePoint(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
}

testing::MetricsText page_of(const RequestMetrics& metrics) {
  Exposition page(Labels().add("model_name", "m").add("engine", "0"));
  metrics.append_to(page);
  return {page.text(), "m"};
}

// The log of the tests below.
class LoggedRequests : public ::testing::Test {
 protected:
  void SetUp() override {
    // Two choices of one request, the first with a cached prefix. A delta of the second has two
    // tokens.
    RequestLife a(metrics_, {at(0), at(0.25), 10, 16, 2});
    RequestLife b(metrics_, {at(0), at(0.25), 10, 16, {}});
    a.started(at(1.25), {.device = 4, .host = 2});
    a.prompt_done(8);
    a.prompt_done(7);  // no effect
    b.started(at(1.25), {});
    a.generated(at(3.25), 1);
    b.generated(at(3.25), 1);
    a.generated(at(3.5), 1);
    a.started(at(3.5), {.device = 9});  // after a preemption: no effect
    b.generated(at(3.75), 2);
    b.ended(at(3.75), Outcome::kLength);
    a.generated(at(4), 1);
    a.ended(at(4), Outcome::kStop);
    first_ = a.summary();
    // Cancelled in the queue.
    RequestLife c(metrics_, {at(2), at(2), 7, 1, 1});
    c.ended(at(2.5), Outcome::kAbort);
    cancelled_ = c.summary();
    // Refused by the engine.
    { const RequestLife refused(metrics_, {at(2), at(2), 100, 1, 1}); }
    // Fails while its prompt is computed.
    RequestLife e(metrics_, {at(4), at(4), 8, 5, 1});
    e.started(at(4.5), {});
    e.prompt_done(3);
    e.ended(at(6), Outcome::kError);
    // Still computed.
    open_ = std::make_unique<RequestLife>(metrics_, RequestFacts{at(5), at(5), 20, 5, 1});
    open_->started(at(6), {});
    open_->prompt_done(5);
  }

  // The sum and the count of a histogram.
  static std::pair<double, double> of(const testing::MetricsText& page, const std::string& name) {
    return {page.at(name + "_sum"), page.at(name + "_count")};
  }

  RequestMetrics metrics_{1000};
  std::unique_ptr<RequestLife> open_;
  RequestSummary first_;
  RequestSummary cancelled_;
};

TEST_F(LoggedRequests, CountsTokensAndEnds) {
  const testing::MetricsText page = page_of(metrics_);
  EXPECT_EQ(page.at("vllm:prompt_tokens_total"), 10 + 10 + 3 + 5);
  EXPECT_EQ(page.at("vllm:prompt_tokens_cached_total"), 6);
  EXPECT_EQ(page.at("vllm:prompt_tokens_cached_by_source_total{source=device}"), 4);
  EXPECT_EQ(page.at("vllm:prompt_tokens_cached_by_source_total{source=host}"), 2);
  EXPECT_EQ(page.at("vllm:prefix_cache_queries_total"), 10 + 10 + 8 + 20);
  EXPECT_EQ(page.at("vllm:prefix_cache_hits_total"), 6);
  EXPECT_EQ(page.at("vllm:generation_tokens_total"), 6);
  EXPECT_EQ(page.at("vllm:request_success_total{finished_reason=stop}"), 1);
  EXPECT_EQ(page.at("vllm:request_success_total{finished_reason=length}"), 1);
  EXPECT_EQ(page.at("vllm:request_success_total{finished_reason=abort}"), 1);
  EXPECT_EQ(page.at("vllm:request_success_total{finished_reason=error}"), 1);
  EXPECT_EQ(page.at("sluice:prefill_remaining_tokens"), 15);
  open_.reset();
  EXPECT_EQ(page_of(metrics_).at("sluice:prefill_remaining_tokens"), 0);
}

TEST_F(LoggedRequests, MeasuresPhases) {
  using Pair = std::pair<double, double>;
  const testing::MetricsText page = page_of(metrics_);
  EXPECT_EQ(of(page, "vllm:time_to_first_token_seconds"), Pair(6.5, 2));
  EXPECT_EQ(of(page, "vllm:inter_token_latency_seconds"), Pair(1.25, 4));
  EXPECT_EQ(of(page, "vllm:request_time_per_output_token_seconds"), Pair(0.625, 2));
  EXPECT_EQ(of(page, "vllm:e2e_request_latency_seconds"), Pair(4 + 3.75 + 0.5 + 2, 4));
  EXPECT_EQ(of(page, "vllm:request_queue_time_seconds"), Pair(1 + 1 + 0.5 + 1, 4));
  EXPECT_EQ(of(page, "vllm:request_prefill_time_seconds"), Pair(4, 2));
  EXPECT_EQ(of(page, "vllm:request_decode_time_seconds"), Pair(0.75 + 0.5, 2));
  EXPECT_EQ(of(page, "vllm:request_inference_time_seconds"), Pair(2.75 + 2.5, 2));
  EXPECT_EQ(of(page, "vllm:request_prompt_tokens"), Pair(10 + 10 + 7 + 8, 4));
  EXPECT_EQ(of(page, "vllm:request_generation_tokens"), Pair(6, 4));
  EXPECT_EQ(of(page, "vllm:request_params_n"), Pair(4, 3));
  EXPECT_EQ(of(page, "vllm:request_params_max_tokens"), Pair(16 + 16 + 1 + 5, 4));
}

TEST_F(LoggedRequests, PutsObservationsIntoBuckets) {
  const testing::MetricsText page = page_of(metrics_);
  const auto bucket = [&](const std::string& name, const std::string& bound) {
    return page.at("vllm:" + name + "_bucket{le=" + bound + "}");
  };
  EXPECT_EQ(bucket("time_to_first_token_seconds", "0.001"), 0);
  EXPECT_EQ(bucket("time_to_first_token_seconds", "2.5"), 0);
  EXPECT_EQ(bucket("time_to_first_token_seconds", "5.0"), 2);
  EXPECT_EQ(bucket("time_to_first_token_seconds", "2560.0"), 2);
  EXPECT_EQ(bucket("inter_token_latency_seconds", "0.2"), 0);
  EXPECT_EQ(bucket("inter_token_latency_seconds", "0.3"), 3);
  EXPECT_EQ(bucket("inter_token_latency_seconds", "0.4"), 3);
  EXPECT_EQ(bucket("inter_token_latency_seconds", "0.5"), 4);
  EXPECT_EQ(bucket("request_generation_tokens", "1.0"), 2);
  EXPECT_EQ(bucket("request_generation_tokens", "1000.0"), 4);
}

TEST_F(LoggedRequests, SumsUpARequest) {
  EXPECT_EQ(first_.num_prompt_tokens, 10);
  EXPECT_EQ(first_.num_cached_tokens, 6);
  EXPECT_EQ(first_.num_generated_tokens, 3);
  EXPECT_EQ(first_.queue_s, 1);
  EXPECT_EQ(first_.prefill_s, 2);
  EXPECT_EQ(first_.decode_s, 0.75);
  EXPECT_EQ(first_.outcome, Outcome::kStop);
  EXPECT_EQ(cancelled_.queue_s, std::nullopt);
  EXPECT_EQ(cancelled_.prefill_s, std::nullopt);
  EXPECT_EQ(cancelled_.decode_s, std::nullopt);
  EXPECT_EQ(open_->summary().queue_s, 1);
  EXPECT_EQ(open_->summary().outcome, std::nullopt);
}

TEST_F(LoggedRequests, GivesTotals) {
  const TokenTotals totals = metrics_.totals();
  EXPECT_EQ(totals.num_computed, 22);
  EXPECT_EQ(totals.num_cached, 6);
  EXPECT_EQ(totals.num_missed, 42);
  EXPECT_EQ(totals.num_generated, 6);
  EXPECT_EQ(totals.num_prompt(), 28);
  EXPECT_EQ(totals.num_queried(), 48);
}

// Tokens count when they are computed, and a late report of fewer takes none back.
TEST(RequestMetrics, FollowsAPromptWhileItIsComputed) {
  RequestMetrics metrics(100);
  RequestLife life(metrics, {.num_prompt_tokens = 10});
  life.started(at(1), {.host = 4});
  for (const auto& [report, counted] : {std::pair(4, 4), {6, 6}, {5, 6}, {6, 6}, {9, 9}}) {
    life.prompt_done(report);
    EXPECT_EQ(metrics.totals().num_prompt(), counted) << report;
    EXPECT_EQ(page_of(metrics).at("sluice:prefill_remaining_tokens"), 10 - counted) << report;
  }
  life.generated(at(2), 1);  // which takes the whole prompt
  EXPECT_EQ(metrics.totals().num_computed, 6);
  EXPECT_EQ(metrics.totals().num_cached, 4);
}

TEST(RequestLifeDeathTest, RefusesAWrongOrder) {
  RequestMetrics metrics(10);
  RequestLife life(metrics, {.num_prompt_tokens = 2});
  EXPECT_DEATH(life.generated(at(1), 1), "started_");
  EXPECT_DEATH(life.prompt_done(1), "started_");
  EXPECT_DEATH(life.started(at(1), {.device = 2, .host = 1}), "num_prompt_tokens");
  life.started(at(1), {});
  EXPECT_DEATH(life.prompt_done(3), "num_prompt_tokens");
  life.ended(at(1), Outcome::kStop);
  EXPECT_DEATH(life.ended(at(1), Outcome::kStop), "outcome_");
}

// One request of the threads below: 4 prompt tokens, 1 of them cached, 3 generated.
void live(RequestMetrics& metrics) {
  RequestLife life(metrics, {at(0), at(0), 4, 3, 1});
  life.started(at(1), {.device = 1});
  life.prompt_done(2);
  for (const double time : {2.0, 2.25, 2.5}) life.generated(at(time), 1);
  life.ended(at(2.5), Outcome::kLength);
}

// Each page that is read meanwhile is well formed, no counter falls, and nothing is lost.
TEST(RequestMetrics, IsReadWhileThreadsAdd) {
  constexpr int kNumRequests = 20'000;
  RequestMetrics metrics(100);
  std::atomic<int> num_running = 2;
  const auto work = [&] {
    for (int i = 0; i < kNumRequests; ++i) live(metrics);
    --num_running;
  };
  std::thread first(work);
  std::thread second(work);
  double before = 0;
  while (num_running > 0) {
    const testing::MetricsText page = page_of(metrics);
    const std::string tokens = "vllm:inter_token_latency_seconds";
    EXPECT_EQ(page.at(tokens + "_bucket{le=+Inf}"), page.at(tokens + "_count"));
    EXPECT_GE(page.at(tokens + "_count"), before);
    before = page.at(tokens + "_count");
  }
  first.join();
  second.join();
  const testing::MetricsText page = page_of(metrics);
  EXPECT_EQ(page.at("vllm:prompt_tokens_total"), 2 * kNumRequests * 4);
  EXPECT_EQ(page.at("vllm:generation_tokens_total"), 2 * kNumRequests * 3);
  EXPECT_EQ(page.at("vllm:inter_token_latency_seconds_sum"), 2 * kNumRequests * 0.5);
  EXPECT_EQ(page.at("sluice:prefill_remaining_tokens"), 0);
}

}  // namespace
}  // namespace sluice::metrics
