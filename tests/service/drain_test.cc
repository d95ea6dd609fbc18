// The ends of a service: draining with and without a deadline, and its destruction.
#include <gtest/gtest.h>

#include "service/service_rig.h"

namespace sluice {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using namespace testing;  // of service_rig.h

// One request runs at a time.
std::unique_ptr<LlmEngine> make_narrow() {
  EngineOptions options = served_options();
  options.max_num_seqs = 1;
  return served_engine(options);
}

// Takes at least most of a second to answer: two milliseconds for each token.
Job slow_job(uint64_t seed) { return {random_tokens(30, seed), sampled(400, 1)}; }
void be_slow(const RequestEvent& event) {
  if (has_token(event)) std::this_thread::sleep_for(milliseconds(2));
}

TEST(Drain, WaitsForRequestsThatEndByThemselves) {
  std::vector<EventLog> logs(3);
  EngineService service(make_narrow, {});
  for (EventLog& log : logs) submit(service, {random_tokens(100, 1), sampled(20, 1)}, log);
  EXPECT_EQ(service.drain(hours(1'000'000)), 0);
  for (EventLog& log : logs) {
    ASSERT_FALSE(log.events().empty());
    EXPECT_TRUE(testing::is_end(log.events().back())) << "drain came before the end";
    EXPECT_EQ(log.wait_end().reason, EndReason::kLength);
  }
  EXPECT_EQ(service.drain(hours(1)), 0) << "again";
  expect_idle(service.snapshot());
}

TEST(Drain, OfAServiceThatDidNothingReturnsAtOnce) {
  EngineService service(make_narrow, {});
  EXPECT_EQ(service.drain(std::chrono::nanoseconds::max()), 0);
  EXPECT_EQ(service.drain(std::chrono::nanoseconds::min()), 0);
}

// One runs, one waits in the engine; a third was cancelled by its client before.
TEST(Drain, AbortsTheRestAfterItsLimit) {
  EventLog running, waiting, cancelled;
  EngineService service(make_narrow, {});
  const int64_t first = submit(service, slow_job(1), running, be_slow);
  const int64_t second = submit(service, slow_job(2), waiting);
  service.cancel(submit(service, slow_job(3), cancelled));
  EXPECT_EQ(service.drain(milliseconds(20)), 2);
  EXPECT_EQ(running.wait_end().reason, EndReason::kAborted);
  EXPECT_EQ(waiting.wait_end().reason, EndReason::kAborted);
  EXPECT_EQ(cancelled.wait_end().reason, EndReason::kCancelled);
  expect_ordered(running.events(), first);
  expect_ordered(waiting.events(), second);
  EXPECT_EQ(running.joined().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(num_ended(service.snapshot(), EndReason::kAborted), 2);
  expect_idle(service.snapshot());
}

// As a second signal does, while the first drain waits.
TEST(Drain, WithZeroEndsAnotherDrain) {
  EventLog log;
  EngineService service(make_narrow, {});
  submit(service, slow_job(1), log, be_slow);
  int64_t num_aborted = -1;
  std::thread first([&] { num_aborted = service.drain(hours(1)); });
  while (service.snapshot().state == ServiceState::kServing) std::this_thread::yield();
  EXPECT_EQ(service.drain(std::chrono::nanoseconds(0)), 1);
  first.join();
  EXPECT_EQ(num_aborted, 0);
  EXPECT_EQ(log.wait_end().reason, EndReason::kAborted);
}

// Each accepted request has an end when drain returns, and none is accepted later.
TEST(Drain, RacesWithSubmit) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int64_t> num_accepted = 0, num_ends = 0;
    EngineService service([] { return served_engine(served_options()); }, {});
    const auto client = [&] {
      const Job job{random_tokens(20, 1), sampled(2, 1)};
      while (true) {
        const Submitted answer = service.submit(request_of(job), [&](const RequestEvent& event) {
          num_ends += testing::is_end(event) ? 1 : 0;
        });
        if (answer.refusal == Refusal::kDraining) return;
        num_accepted += answer.accepted() ? 1 : 0;
      }
    };
    std::vector<std::thread> clients;
    for (int i = 0; i < 3; ++i) clients.emplace_back(client);
    while (num_accepted < 5) std::this_thread::yield();
    service.drain(milliseconds(round % 3));
    const int64_t num_ends_then = num_ends;
    const ServiceSnapshot now = service.snapshot();
    for (std::thread& thread : clients) thread.join();
    EXPECT_EQ(now.num_accepted, num_accepted);
    EXPECT_EQ(num_ends_then, num_accepted);
    EXPECT_EQ(num_ends, num_accepted);
    expect_idle(now);
  }
}

// One runs, one waits in the engine, one was submitted since the last step and cancelled.
TEST(Destructor, AbortsOpenRequestsAndDestroysTheirSinks) {
  std::vector<EventLog> logs(3);
  CallGate gate;
  const auto alive = std::make_shared<int>();
  const auto keep = [alive](const RequestEvent&) {};
  std::thread opener;
  {
    EngineService service(make_narrow, {});
    submit(service, slow_job(1), logs[0], [&, alive](const RequestEvent& event) {
      if (has_token(event)) gate.pass();
    });
    submit(service, slow_job(2), logs[1], keep);
    gate.wait_for(1);
    service.cancel(submit(service, slow_job(3), logs[2], keep));
    opener = std::thread([&gate] {  // while the destructor waits
      std::this_thread::sleep_for(milliseconds(20));
      gate.open();
    });
  }
  opener.join();
  EXPECT_EQ(alive.use_count(), 2) << "this one and that of `keep`";
  for (size_t i = 0; i < logs.size(); ++i) {
    EXPECT_EQ(logs[i].wait_end().reason, i == 2 ? EndReason::kCancelled : EndReason::kAborted);
    expect_ordered(logs[i].events(), static_cast<int64_t>(i) + 1);
  }
}

}  // namespace
}  // namespace sluice
