// An engine that fails: each open request gets one end with the error, and the service is dead.
#include <map>
#include <stdexcept>

#include <gtest/gtest.h>

#include "service/service_rig.h"
#include "support/device_hooks.h"
#include "support/stream_spy.h"

namespace sluice {
namespace {

using testing::EventLog;
using testing::expect_ordered;
using testing::has_token;
using testing::is_end;
using testing::is_progress;
using testing::Job;
using testing::num_ended;
using testing::num_refused;
using testing::random_tokens;
using testing::request_of;
using testing::sampled;
using testing::served_engine;
using testing::served_offloaded;
using testing::StreamSpy;
using testing::submit;

// Two requests run; the third waits.
EngineOptions narrow_options() {
  EngineOptions options = served_offloaded();
  options.max_num_seqs = 2;
  return options;
}

Job job_of(uint64_t seed) { return {random_tokens(100, seed), sampled(100, 1)}; }

void expect_dead(EngineService& service, const std::string& text) {
  const ServiceSnapshot now = service.snapshot();
  EXPECT_EQ(now.state, ServiceState::kDead);
  ASSERT_TRUE(now.error);
  EXPECT_EQ(now.error->code(), ErrorCode::kDevice);
  EXPECT_NE(std::string(now.error->what()).find(text), std::string::npos) << now.error->what();
  EXPECT_EQ(num_ended(now, EndReason::kError), now.num_accepted);
  EXPECT_EQ(now.num_waiting + now.num_running + now.num_waiting_prompt_tokens, 0);
  const Submitted answer =
      service.submit(request_of(job_of(1)), [](const RequestEvent&) { FAIL() << "was called"; });
  EXPECT_EQ(answer.refusal, Refusal::kDead);
  for (int64_t id = 1; id <= now.num_accepted; ++id) EXPECT_FALSE(service.cancel(id));
}

void expect_error_end(const EventLog& log, const std::string& text) {
  const std::vector<RequestEvent> events = log.events();
  ASSERT_FALSE(events.empty());
  ASSERT_TRUE(is_end(events.back()));
  const auto& end = std::get<RequestEnd>(events.back());
  ASSERT_EQ(end.reason, EndReason::kError);
  EXPECT_NE(std::string(end.error->what()).find(text), std::string::npos) << end.error->what();
}

struct FailingStream {
  const char* stream;
  bool in_prefill;  // after progress of the first request; otherwise after its first token
};

class FailingEngine : public ::testing::TestWithParam<FailingStream> {};

// One request runs alone or with another, one waits in the engine, and one was submitted within the
// step that fails, or just before it.
TEST_P(FailingEngine, EndsEveryRequestOnceWithItsError) {
  std::vector<EventLog> logs(4);
  std::map<std::string, Stream*> streams;
  EngineService service(
      [&] { return served_engine(narrow_options(), std::make_unique<StreamSpy>(streams)); }, {});
  const auto is_dead_at_the_end = [&](const RequestEvent& event) {
    if (is_end(event)) expect_dead(service, "the cable was pulled");
  };
  bool has_failed = false;
  submit(service, job_of(1), logs[0], [&](const RequestEvent& event) {
    is_dead_at_the_end(event);
    if (has_failed || !(GetParam().in_prefill ? is_progress : has_token)(event)) return;
    has_failed = true;
    submit(service, job_of(4), logs[3], is_dead_at_the_end);
    testing::enqueue_failure(*streams.at(GetParam().stream), "the cable was pulled");
  });
  for (size_t i = 1; i < 3; ++i) {
    const Submitted answer =
        service.submit(request_of(job_of(i + 1)), logs[i].sink(is_dead_at_the_end));
    ASSERT_TRUE(answer.accepted());
  }
  logs[3].wait_end();
  EXPECT_EQ(service.drain(std::chrono::hours(1)), 0);
  expect_dead(service, "the cable was pulled");
  EXPECT_EQ(service.snapshot().stalled_ns, 0);
  EXPECT_EQ(num_refused(service.snapshot(), Refusal::kDead), 5);
  for (const EventLog& log : logs) {
    expect_error_end(log, "the cable was pulled");
    const std::vector<RequestEvent> events = log.events();
    EXPECT_EQ(std::ranges::count_if(events, is_end), 1);
  }
  expect_ordered(logs[0].events(), 1);
}

INSTANTIATE_TEST_SUITE_P(Streams, FailingEngine,
                         ::testing::Values(FailingStream{"compute", true},
                                           FailingStream{"compute", false},
                                           FailingStream{"slot 0", true},
                                           FailingStream{"slot 0", false},
                                           FailingStream{"write-back", false}),
                         [](const auto& param_info) {
                           std::string name = param_info.param.stream;
                           for (char& c : name) c = std::isalnum(c) ? c : '_';
                           return name + (param_info.param.in_prefill ? "_prefill" : "_decode");
                         });

// Other exceptions than Error, from the clock of the engine.
TEST(FailingEngineTest, AnyExceptionEndsAllRequests) {
  for (const bool is_known : {true, false}) {
    EventLog log;
    bool fails = false;  // the engine's thread
    const auto now_ns = [&]() -> int64_t {
      if (fails && is_known) throw std::runtime_error("the clock stopped");
      if (fails) throw 1;
      return 0;
    };
    const std::string text = is_known ? "the clock stopped" : "unknown exception";
    EngineService service(
        [&] {
          return std::make_unique<LlmEngine>(
              narrow_options(),
              LlmEngine::Parts{.device = testing::make_test_device({.num_threads = 2}),
                               .now_ns = now_ns});
        },
        {});
    const auto alive = std::make_shared<int>();
    submit(service, job_of(1), log,
           [&, alive](const RequestEvent& event) { fails = has_token(event); });
    EXPECT_EQ(service.drain(std::chrono::hours(1)), 0);
    EXPECT_EQ(alive.use_count(), 1) << "the sink was not destroyed";
    expect_error_end(log, text);
    expect_dead(service, text);
  }
}

}  // namespace
}  // namespace sluice
