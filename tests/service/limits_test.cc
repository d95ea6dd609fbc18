// What a service refuses, and what it throws: limits of the waiting requests, bad parameters.
#include <gtest/gtest.h>

#include "service/service_rig.h"

namespace sluice {
namespace {

using namespace testing;  // of service_rig.h

Job job_of_length(int64_t num_tokens) { return {random_tokens(num_tokens, 1), sampled(3, 1)}; }

// A service whose engine is held while one request runs, so that all others wait.
class HeldService : public ::testing::Test {
 protected:
  void start(const ServiceLimits& limits) {
    service_.emplace([] { return served_engine(served_options()); }, limits);
    submit_and_hold(*service_, job_of_length(20), running_, gate_);
  }
  void TearDown() override { gate_.open(); }

  // Submits a request that must be refused; its sink is destroyed without a call.
  void expect_refused(int64_t num_tokens, Refusal refusal) {
    const int64_t num_before = num_refused(service_->snapshot(), refusal);
    const auto alive = std::make_shared<int>();
    const Submitted answer =
        service_->submit(request_of(job_of_length(num_tokens)),
                         [alive](const RequestEvent&) { FAIL() << "was called"; });
    EXPECT_FALSE(answer.accepted());
    EXPECT_EQ(answer.refusal, refusal) << refusal_name(refusal);
    EXPECT_EQ(answer.request_id, -1);
    EXPECT_EQ(alive.use_count(), 1);
    EXPECT_EQ(num_refused(service_->snapshot(), refusal), num_before + 1);
  }

  // Expects these numbers while one more request runs.
  void expect_waiting(int64_t num_requests, int64_t num_tokens) {
    const ServiceSnapshot now = service_->snapshot();
    EXPECT_EQ(now.num_accepted, num_requests + 1);
    EXPECT_EQ(now.num_running, 1);
    EXPECT_EQ(now.num_waiting, num_requests);
    EXPECT_EQ(now.num_waiting_prompt_tokens, num_tokens);
    EXPECT_GT(now.kv.num_used, 0);
  }

  EventLog running_, first_, second_, third_;
  CallGate gate_;
  std::optional<EngineService> service_;
};

TEST_F(HeldService, RefusesMoreThanMaxWaiting) {
  start({.max_waiting = 2});
  submit(*service_, job_of_length(20), first_);
  submit(*service_, job_of_length(20), second_);
  expect_waiting(2, 40);
  expect_refused(20, Refusal::kTooManyWaiting);
  expect_waiting(2, 40);
  gate_.open();
  second_.wait_end();
  submit(*service_, job_of_length(20), third_);  // there is room again
  EXPECT_EQ(third_.wait_end().reason, EndReason::kLength);
  service_->drain(std::chrono::hours(1));
  expect_idle(service_->snapshot());
}

TEST_F(HeldService, RefusesMoreThanMaxWaitingTokens) {
  start({.max_waiting_tokens = 100});
  submit(*service_, job_of_length(90), first_);
  expect_refused(11, Refusal::kTooManyWaitingTokens);
  submit(*service_, job_of_length(10), second_);
  expect_waiting(2, 100);
  expect_refused(1, Refusal::kTooManyWaitingTokens);
}

// It could otherwise never run.
TEST_F(HeldService, AcceptsOneLargeRequest) {
  start({.max_waiting_tokens = 100});
  submit(*service_, job_of_length(200), first_);
  expect_refused(1, Refusal::kTooManyWaitingTokens);
  gate_.open();
  EXPECT_EQ(first_.wait_end().reason, EndReason::kLength);
}

// A cancelled request waits until the engine has ended it.
TEST_F(HeldService, CountsCancelledRequestsUntilTheirEnd) {
  start({.max_waiting = 1});
  service_->cancel(submit(*service_, job_of_length(20), first_));
  expect_refused(20, Refusal::kTooManyWaiting);
  gate_.open();
  EXPECT_EQ(first_.wait_end().reason, EndReason::kCancelled);
  submit(*service_, job_of_length(20), second_);
}

TEST_F(HeldService, RefusesWhileItDrains) {
  start({});
  std::thread drainer([&] { service_->drain(std::chrono::hours(1)); });
  while (service_->snapshot().state == ServiceState::kServing) std::this_thread::yield();
  expect_refused(20, Refusal::kDraining);
  gate_.open();
  drainer.join();
  expect_refused(20, Refusal::kDraining);
  EXPECT_EQ(service_->snapshot().state, ServiceState::kDraining);
}

// The engine stands within a step: the time grows. (Asleep it is 0, which expect_idle looks at.)
TEST_F(HeldService, TellsHowLongTheEngineStandsStill) {
  start({});
  const int64_t before = service_->snapshot().stalled_ns;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(service_->snapshot().stalled_ns, before + 5'000'000);
}

TEST(ServiceErrors, AreThrownBySubmitAndByTheConstructor) {
  const auto code_of = [](const auto& call) -> std::optional<ErrorCode> {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return std::nullopt;
  };
  EngineService service(served_options(), {});
  const auto submit_job = [&](const Job& job) {
    return code_of([&] { service.submit(request_of(job), [](const RequestEvent&) {}); });
  };
  EXPECT_EQ(submit_job({{}, sampled(1, 1)}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(submit_job({{1 << 20}, sampled(1, 1)}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(submit_job({{1}, sampled(0, 1)}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(submit_job({{1}, sampled(1 << 30, 1)}), ErrorCode::kDoesNotFit);
  EXPECT_EQ(service.snapshot().num_accepted, 0);
  for (const ServiceLimits& limits :
       {ServiceLimits{.max_waiting = 0}, ServiceLimits{.max_waiting_tokens = 0}}) {
    EXPECT_EQ(code_of([&] { EngineService(served_options(), limits); }),
              ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sluice
