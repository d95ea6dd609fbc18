// One request at a time in the service: its events, their order, its cancellation, and sinks that
// throw or submit.
#include <atomic>
#include <map>
#include <stdexcept>

#include <gtest/gtest.h>

#include "service/service_rig.h"
#include "sluice/llm.h"

namespace sluice {
namespace {

using testing::CallGate;
using testing::EventLog;
using testing::expect_all_same;
using testing::expect_idle;
using testing::expect_ordered;
using testing::expect_same_bits;
using testing::has_token;
using testing::id_of;
using testing::is_end;
using testing::is_progress;
using testing::Job;
using testing::num_ended;
using testing::random_tokens;
using testing::sampled;
using testing::served_engine;
using testing::served_offloaded;
using testing::served_options;
using testing::submit;
using testing::submit_and_hold;

EngineOptions options_of(const std::string& mode) {
  if (mode == "resident") return served_options();
  if (mode == "chunked") return served_offloaded();
  EngineOptions options = served_offloaded();
  options.kv.offload = KvOffload::kLayerwise;
  options.max_num_batched_tokens = 1024;
  options.prefill_chunk_tokens.reset();
  return options;
}

EngineService::MakeEngine maker_of(const EngineOptions& options) {
  return [options] { return served_engine(options); };
}

// The tokens of the prompt that each PromptProgress reports as done.
std::vector<int64_t> progress_of(const EventLog& log) {
  std::vector<int64_t> done;
  for (const RequestEvent& event : log.events()) {
    if (const auto* progress = std::get_if<PromptProgress>(&event)) {
      done.push_back(progress->num_done);
    }
  }
  return done;
}

class ServedRequests : public ::testing::TestWithParam<const char*> {
 protected:
  const EngineOptions options_ = options_of(GetParam());
  const Job long_job_{random_tokens(300, 1), sampled(8, 1)};
  const Job short_job_{random_tokens(40, 2), sampled(30, 2)};
};

// Also of a request that ends by a stop id, and of one with log-probabilities of its prompt, which
// come before its first token.
TEST_P(ServedRequests, DeltasGiveTheOutputOfGenerate) {
  std::vector<Job> jobs{long_job_, short_job_};
  for (uint64_t i = 0; i < 6; ++i) {
    jobs.push_back({random_tokens(3 + 37 * static_cast<int64_t>(i), 10 + i),
                    sampled(1 + 7 * static_cast<int32_t>(i), 10)});
  }
  const std::vector<RequestOutput> first = testing::run_engine(options_, jobs);
  jobs[1].params.stop_token_ids = {first[1].token_ids[9]};
  jobs[6].params.prompt_logprobs = 2;
  const std::vector<RequestOutput> expected = testing::run_engine(options_, jobs);

  std::vector<EventLog> logs(jobs.size());
  std::vector<RequestOutput> joined;
  EngineService service(options_, {});
  std::vector<int64_t> ids;
  for (size_t i = 0; i < jobs.size(); ++i) ids.push_back(submit(service, jobs[i], logs[i]));
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(logs[i].wait_end().reason, i == 1 ? EndReason::kStop : EndReason::kLength);
    expect_ordered(logs[i].events(), ids[i]);
    joined.push_back(logs[i].joined());
    EXPECT_EQ(joined[i].prompt_token_ids, jobs[i].prompt);
    EXPECT_EQ(joined[i].finish_reason, expected[i].finish_reason);
  }
  expect_all_same(joined, expected, "service and generate");
  ASSERT_EQ(joined[6].prompt_logprobs.size(), jobs[6].prompt.size());
  for (size_t i = 1; i < joined[6].prompt_logprobs.size(); ++i) {
    EXPECT_EQ(joined[6].prompt_logprobs[i][0].logprob, expected[6].prompt_logprobs[i][0].logprob);
  }
  EXPECT_EQ(service.drain(std::chrono::hours(1)), 0);
  expect_idle(service.snapshot());
}

TEST_P(ServedRequests, ProgressIsReportedWithinPassesAndOfCachedTokens) {
  EventLog cold, warm;
  EngineService service(maker_of(options_), {});
  expect_ordered((submit(service, long_job_, cold), cold.wait_end(), cold.events()), 1);
  const std::vector<int64_t> done = progress_of(cold);
  EXPECT_EQ(done.back(), 300);
  if (std::string(GetParam()) == "layerwise") {
    EXPECT_EQ(std::ranges::count(done, 150), 1) << "after the first of two layers";
  } else {
    for (const int64_t end : {64, 128, 192, 256}) EXPECT_EQ(std::ranges::count(done, end), 1);
    EXPECT_GT(done.size(), 5u) << "none within a pass";
  }

  submit(service, long_job_, warm);
  warm.wait_end();
  const auto first = std::get<PromptProgress>(warm.events().front());
  EXPECT_EQ(first.num_cached_tokens, 288) << "whole blocks before the last token";
  EXPECT_GE(first.num_done, 288);
  expect_ordered(warm.events(), 2);
  expect_same_bits(warm.joined(), cold.joined(), "warm");
}

// The time of a step that stands still begins again with each part of a pass.
TEST_P(ServedRequests, PartsOfAPassAreSignsOfLife) {
  constexpr std::chrono::milliseconds kPause(100);
  EventLog log;
  std::vector<int64_t> stalled_ns;
  EngineService service(maker_of(options_), {});
  submit(service, long_job_, log, [&](const RequestEvent& event) {
    if (!is_progress(event) || stalled_ns.size() == 2) return;
    stalled_ns.push_back(service.snapshot().stalled_ns);
    std::this_thread::sleep_for(kPause);
  });
  log.wait_end();
  ASSERT_EQ(stalled_ns.size(), 2u);
  EXPECT_GT(stalled_ns[0], 0);
  EXPECT_LT(std::chrono::nanoseconds(stalled_ns[1]), kPause);
}

TEST_P(ServedRequests, CancelBeforeTheFirstPass) {
  EventLog running, waiting;
  CallGate gate;
  EngineService service(maker_of(options_), {});
  submit_and_hold(service, short_job_, running, gate);
  const int64_t id = submit(service, long_job_, waiting);
  EXPECT_TRUE(service.cancel(id));
  EXPECT_TRUE(service.cancel(id)) << "not ended yet";
  gate.open();
  EXPECT_EQ(waiting.wait_end().reason, EndReason::kCancelled);
  EXPECT_FALSE(service.cancel(id));
  EXPECT_EQ(waiting.events().size(), 2u);
  expect_ordered(waiting.events(), id);
  EXPECT_EQ(waiting.joined().finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(running.wait_end().reason, EndReason::kLength);
  EXPECT_EQ(service.snapshot().stats.num_prompt_tokens, 40);
}

// A pass asks the clock before and after it. In between, and not with the first output, a sink
// learns that its request is no longer queued; one that waits learns it when the one before it has
// ended.
TEST(EngineServiceTest, SaysWhenItBeginsWithARequest) {
  EngineOptions options = served_options();
  options.max_num_seqs = 1;
  std::atomic<int> num_asked = 0;
  EventLog first, second;
  int num_before = 0, asked_at_first = 0;
  bool first_has_ended = false, second_waited = false;
  EngineService service(
      [&] {
        return std::make_unique<LlmEngine>(
            options, LlmEngine::Parts{.device = testing::make_test_device({.num_threads = 2}),
                                      .now_ns = [&] { return int64_t{1000} * ++num_asked; }});
      },
      {});
  num_before = num_asked;
  const Job job{random_tokens(40, 1), sampled(4, 1)};
  submit(service, job, first, [&](const RequestEvent& event) {
    if (asked_at_first == 0) asked_at_first = num_asked;
    first_has_ended = is_end(event);
  });
  submit(service, job, second, [&](const RequestEvent& event) {
    const auto* progress = std::get_if<PromptProgress>(&event);
    if (progress != nullptr && progress->num_done < 40) second_waited = first_has_ended;
  });
  first.wait_end();
  second.wait_end();
  EXPECT_EQ(asked_at_first - num_before, 1) << "the pass had ended before the request began";
  EXPECT_EQ(std::get<PromptProgress>(first.events().front()).num_done, 0);
  EXPECT_EQ(std::get<PromptProgress>(second.events().front()).num_done, 32) << "cached blocks";
  EXPECT_TRUE(second_waited);
}

// By another thread, while the engine is within a pass; by its own sink; and at each of the first
// events, of which the last ones are tokens.
TEST_P(ServedRequests, CancelInPrefillAndInDecode) {
  std::map<size_t, EventLog> logs;  // not moved once made
  CallGate gate;
  EngineService service(maker_of(options_), {});
  const int64_t id = submit(service, {random_tokens(300, 3), sampled(8, 3)}, logs[0],
                            [&](const RequestEvent& event) {
                              if (is_progress(event)) gate.pass();
                            });
  gate.wait_for(1);
  EXPECT_TRUE(service.cancel(id));
  gate.open();
  EXPECT_EQ(logs[0].wait_end().reason, EndReason::kCancelled);
  EXPECT_TRUE(logs[0].joined().token_ids.empty());
  EXPECT_LT(progress_of(logs[0]).back(), 300);

  constexpr size_t kLast = 24;
  for (size_t n = 1; n <= kLast; ++n) {
    size_t num_left = n, num_tokens = 0;
    const auto cancel = [&](const RequestEvent& event) {
      num_tokens += num_left > 0 && has_token(event) ? 1 : 0;
      if (num_left == 0 || --num_left > 0) return;
      EXPECT_TRUE(service.cancel(id_of(event)));
    };
    submit(service, {random_tokens(300, 10 + n), sampled(100, 3)}, logs[n], cancel);
    EXPECT_EQ(logs[n].wait_end().reason, EndReason::kCancelled);
    expect_ordered(logs[n].events(), static_cast<int64_t>(n) + 1);
    const size_t num_late = logs[n].joined().token_ids.size() - num_tokens;
    // The first token comes if the end of its pass was enqueued already.
    EXPECT_LE(num_late, num_tokens == 0 ? 1u : 0u) << "after event " << n;
  }
  EXPECT_FALSE(logs[kLast].joined().token_ids.empty()) << "no cancel was in decode";
  service.drain(std::chrono::hours(1));
  expect_idle(service.snapshot());
}

INSTANTIATE_TEST_SUITE_P(Modes, ServedRequests,
                         ::testing::Values("resident", "chunked", "layerwise"),
                         [](const auto& mode) { return std::string(mode.param); });

TEST(EngineServiceTest, CancelAfterTheEndAndOfUnknownRequestsDoesNothing) {
  EventLog log;
  bool at_last_delta = true, at_end = true;
  EngineService service(served_options(), {});
  const int64_t id =
      submit(service, {random_tokens(20, 1), sampled(3, 1)}, log, [&](const RequestEvent& event) {
        const auto* output = std::get_if<RequestOutput>(&event);
        if (output != nullptr && output->finished()) at_last_delta = service.cancel(1);
        if (is_end(event)) at_end = service.cancel(1);
      });
  EXPECT_EQ(log.wait_end().reason, EndReason::kLength);
  service.drain(std::chrono::hours(1));
  EXPECT_FALSE(at_last_delta);
  EXPECT_FALSE(at_end);
  for (const int64_t other : {id, id + 1, int64_t{0}, int64_t{-1}}) {
    EXPECT_FALSE(service.cancel(other));
  }
}

// Each request fits alone, but not all together; the newest is preempted, and cancelled while it
// waits.
TEST(EngineServiceTest, CancelOfAPreemptedRequest) {
  const EngineOptions options = testing::served_offloaded(/*num_host_blocks=*/10);
  const std::vector<Job> jobs{{random_tokens(30, 1), sampled(60, 1)},
                              {random_tokens(30, 2), sampled(60, 2)},
                              {random_tokens(30, 3), sampled(60, 3)}};
  const std::vector<RequestOutput> expected = testing::run_engine(options, jobs);
  std::vector<EventLog> logs(jobs.size());
  bool was_preempted = false;
  EngineService service(maker_of(options), {});
  std::vector<int64_t> ids(3);
  const auto cancel_preempted = [&](const RequestEvent&) {
    const ServiceSnapshot now = service.snapshot();
    if (was_preempted || now.stats.num_preemptions == 0 || now.num_waiting == 0) return;
    was_preempted = service.cancel(3);
  };
  for (size_t i = 0; i < 3; ++i) {
    ids[i] =
        submit(service, jobs[i], logs[i], i == 0 ? EventLog::OnEvent(cancel_preempted) : nullptr);
  }
  EXPECT_EQ(logs[2].wait_end().reason, EndReason::kCancelled);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(logs[i].wait_end().reason, EndReason::kLength);
    expect_same_bits(logs[i].joined(), expected[i], "older");
  }
  for (size_t i = 0; i < 3; ++i) expect_ordered(logs[i].events(), ids[i]);
  EXPECT_TRUE(was_preempted);
  EXPECT_FALSE(logs[2].joined().token_ids.empty());
  service.drain(std::chrono::hours(1));
  expect_idle(service.snapshot());
}

// At its first progress, which comes from within a pass, at its first token, and at its end.
TEST(EngineServiceTest, ASinkThatThrowsEndsItsRequestOnly) {
  const Job job{random_tokens(100, 1), sampled(20, 1)};
  const RequestOutput expected = testing::run_engine(served_options(), {job})[0];
  for (const auto throws_at : {is_progress, has_token, is_end}) {
    EventLog other, thrower;
    EngineService service(maker_of(served_options()), {});
    const auto alive = std::make_shared<int>();
    int num_after = 0;
    bool has_thrown = false;
    submit(service, {random_tokens(100, 2), sampled(20, 2)}, thrower,
           [&, alive](const RequestEvent& event) {
             num_after += has_thrown ? 1 : 0;
             if (!throws_at(event)) return;
             has_thrown = true;
             throw std::runtime_error("sink");
           });
    submit(service, job, other);
    EXPECT_EQ(other.wait_end().reason, EndReason::kLength);
    expect_same_bits(other.joined(), expected, "the other one");
    EXPECT_EQ(service.drain(std::chrono::hours(1)), 0);
    EXPECT_TRUE(has_thrown);
    EXPECT_EQ(num_after, 0);
    EXPECT_EQ(alive.use_count(), 1) << "the sink was not destroyed";
    const ServiceSnapshot now = service.snapshot();
    EXPECT_EQ(now.state, ServiceState::kDraining);
    EXPECT_EQ(num_ended(now, EndReason::kCancelled), throws_at == is_end ? 0 : 1);
    expect_idle(now);
  }
}

TEST(EngineServiceTest, ASinkMaySubmit) {
  constexpr size_t kNumLinks = 10;
  const Job job{random_tokens(50, 1), sampled(4, 1)};
  std::vector<EventLog> logs(kNumLinks);
  EngineService service(served_options(), {});
  std::function<void(size_t)> start = [&](size_t i) {
    submit(service, job, logs[i], [&, i](const RequestEvent& event) {
      if (is_end(event) && i + 1 < kNumLinks) start(i + 1);
    });
  };
  start(0);
  for (size_t i = 0; i < kNumLinks; ++i) {
    EXPECT_EQ(logs[i].wait_end().reason, EndReason::kLength);
    expect_ordered(logs[i].events(), static_cast<int64_t>(i) + 1);
    expect_same_bits(logs[i].joined(), logs[0].joined(), "link");
  }
}

TEST(EngineServiceTest, LoadsOnItsThreadAndThrowsWhatLoadingThrows) {
  bool is_other_thread = false;
  const auto caller = std::this_thread::get_id();
  const EngineService service(served_options(), {}, [&](const LoadProgress&) {
    is_other_thread = std::this_thread::get_id() != caller;
  });
  EXPECT_TRUE(is_other_thread);
  EXPECT_FALSE(service.notes().empty());
  EXPECT_EQ(service.max_model_len(), LLM(served_options()).max_model_len());
  const ServiceSnapshot now = service.snapshot();
  EXPECT_EQ(now.state, ServiceState::kServing);
  EXPECT_GT(now.kv.num_blocks, 0);
  EXPECT_GT(now.stats.load_ns, 0);
  expect_idle(now);

  EngineOptions missing = served_options();
  missing.model = "no-such-model";
  EXPECT_THROW(EngineService(missing, {}), Error);
  const auto failing = [](const LoadProgress&) { throw std::runtime_error("on_load"); };
  EXPECT_THROW(EngineService(served_options(), {}, failing), std::runtime_error);
}

}  // namespace
}  // namespace sluice
