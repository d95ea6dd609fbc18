// Many threads that submit, cancel and look at the service while it runs.
#include <random>

#include <gtest/gtest.h>

#include "service/service_rig.h"
#include "support/offload_of.h"

namespace sluice {
namespace {

using testing::EventLog;
using testing::expect_idle;
using testing::expect_ordered;
using testing::expect_same_bits;
using testing::Job;
using testing::num_ended;
using testing::random_tokens;
using testing::sampled;
using testing::served_engine;
using testing::served_offloaded;
using testing::submit;

constexpr size_t kNumRequests = 200;
constexpr size_t kNumClients = 4;

// More than fit at once, so that some are preempted.
EngineOptions crowded_options() {
  EngineOptions options = served_offloaded(/*num_host_blocks=*/20);
  options.max_num_seqs = 4;
  return options;
}

std::vector<Job> random_jobs() {
  std::mt19937_64 random(1);
  std::vector<Job> jobs;
  for (size_t i = 0; i < kNumRequests; ++i) {
    const auto num_tokens = static_cast<int64_t>(1 + random() % 150);
    const auto num_generated = static_cast<int32_t>(1 + random() % 30);
    const uint64_t seed = random() % 50;  // some prompts begin alike
    jobs.push_back({random_tokens(num_tokens, seed), sampled(num_generated, 1)});
  }
  return jobs;
}

// Looks at the service until it is told to stop.
void watch(const EngineService& service, const std::atomic<bool>& stops, int64_t max_running) {
  int64_t num_accepted = 0, num_seen_ended = 0;
  while (!stops) {
    const ServiceSnapshot now = service.snapshot();
    EXPECT_EQ(now.num_accepted, now.num_waiting + now.num_running + num_ended(now));
    EXPECT_GE(now.num_waiting_prompt_tokens, now.num_waiting);
    EXPECT_GE(now.num_waiting, 0);
    EXPECT_GE(now.num_running, 0);
    EXPECT_LE(now.num_running, max_running);
    EXPECT_GE(now.num_accepted, num_accepted);
    EXPECT_GE(num_ended(now), num_seen_ended);
    EXPECT_LE(now.kv.num_used + now.kv.num_cached, now.kv.num_blocks);
    num_accepted = now.num_accepted;
    num_seen_ended = num_ended(now);
    std::this_thread::yield();
  }
}

// Every fifth request is cancelled, at some event of its own or at some time by its client.
class Clients {
 public:
  Clients(EngineService& service, const std::vector<Job>& jobs)
      : service_(service), jobs_(jobs), logs_(jobs.size()), ids_(jobs.size()) {}

  void run() {
    std::vector<std::thread> threads;
    for (size_t first = 0; first < kNumClients; ++first) {
      threads.emplace_back([this, first] { run_client(first); });
    }
    for (std::thread& thread : threads) thread.join();
    for (EventLog& log : logs_) log.wait_end();
  }

  static bool is_cancelled(size_t i) { return i % 5 == 0; }
  EventLog& log(size_t i) { return logs_[i]; }
  int64_t id(size_t i) const { return ids_[i]; }

 private:
  void run_client(size_t first) {
    for (size_t i = first; i < jobs_.size(); i += kNumClients) {
      if (i % 10 != 0) {
        ids_[i] = submit(service_, jobs_[i], logs_[i]);
      } else {
        ids_[i] = submit(service_, jobs_[i], logs_[i],
                         [this, num_left = 1 + i % 7](const RequestEvent& event) mutable {
                           if (num_left == 0 || --num_left > 0) return;
                           service_.cancel(testing::id_of(event));
                         });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(i % 3 * 500));
      if (i % 10 == 5) service_.cancel(ids_[i]);
    }
  }

  EngineService& service_;
  const std::vector<Job>& jobs_;
  std::vector<EventLog> logs_;
  std::vector<int64_t> ids_;
};

TEST(ServiceThreads, RandomRequestsKeepTheCountsAndTheBits) {
  const std::vector<Job> jobs = random_jobs();
  const std::vector<RequestOutput> expected = testing::run_engine(testing::served_options(), jobs);
  const LlmEngine* engine = nullptr;
  std::optional<Clients> clients;
  EngineService service(
      [&] {
        auto made = served_engine(crowded_options());
        engine = made.get();
        return made;
      },
      {.max_waiting_tokens = 1 << 20});
  clients.emplace(service, jobs);
  std::atomic<bool> stops = false;
  std::thread watcher([&] { watch(service, stops, *crowded_options().max_num_seqs); });
  clients->run();
  stops = true;
  watcher.join();
  service.drain(std::chrono::hours(1));  // no event is under way; the engine sleeps

  int64_t num_cancelled = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    expect_ordered(clients->log(i).events(), clients->id(i));
    const EndReason reason = clients->log(i).wait_end().reason;
    num_cancelled += reason == EndReason::kCancelled ? 1 : 0;
    if (reason == EndReason::kCancelled) {
      EXPECT_TRUE(Clients::is_cancelled(i));
    } else {
      expect_same_bits(clients->log(i).joined(), expected[i], "job " + std::to_string(i));
    }
  }
  const ServiceSnapshot now = service.snapshot();
  expect_idle(now);
  EXPECT_EQ(now.num_accepted, std::ssize(jobs));
  EXPECT_EQ(num_ended(now, EndReason::kCancelled), num_cancelled);
  EXPECT_GT(num_cancelled, 10);
  EXPECT_GT(now.stats.num_preemptions, 0);
  EXPECT_EQ(testing::offload_of(*engine).tails().num_free(),
            engine->plan().offloaded.sizes.num_tails);
}

}  // namespace
}  // namespace sluice
