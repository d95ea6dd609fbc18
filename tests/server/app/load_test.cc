// A mixed load: streams and bodies, one to three choices, clients that leave at any time.
#include <atomic>

#include <gtest/gtest.h>

#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::happens_soon;
using testing::Json;

// KV in host memory, in chunks; some sequences are preempted or wait.
AppOptions offloaded() {
  constexpr int64_t kBlockBytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // all layers
  AppOptions options{.limits = {.max_waiting_tokens = 1 << 20}};
  options.engine.max_num_seqs = 6;
  options.engine.max_model_len = 128;
  options.engine.kv.offload = KvOffload::kChunked;
  options.engine.kv.num_slots = 2;
  options.engine.kv.slot_blocks = 1;
  options.engine.kv.host_bytes = kBlockBytes * 24;
  return options;
}

// One request in five is left, before the answer, in its head or in its events.
bool leaves(int i) { return i % 5 == 0; }

// Whether the answer was complete.
bool run_request(const App& app, int i) {
  const Json request = {{"prompt", std::string(static_cast<size_t>(10 + i % 60), 'a' + i % 26)},
                        {"max_tokens", 4 + i % 20},
                        {"n", 1 + i % 3},
                        {"seed", i},
                        {"stream", i % 2 == 0}};
  RawClient client(app.server->port());
  client.send(testing::post_text("/v1/completions", request.dump()));
  if (leaves(i)) {
    if (i % 4 == 0) client.read_until(i % 3 == 0 ? "\r\n\r\n" : "\"text\":");
    i % 15 == 0 ? client.reset() : client.close_now();
    return false;
  }
  if (i % 2 == 1) return status_of(client.read_answer()) == 200;
  return testing::ends_done(client);
}

TEST(AppLoad, HoldsNothingAfterwards) {
  constexpr int kRequests = 200, kThreads = 8;
  std::atomic<int> num_logged = 0;
  AppOptions options = offloaded();
  options.log = [&](const metrics::RequestLogEntry&) { ++num_logged; };
  App app(options);
  app.serve();
  std::atomic<int> next = 0, num_complete = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = next++; i < kRequests; i = next++) num_complete += run_request(app, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_complete, kRequests * 4 / 5);
  EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
  const ServiceSnapshot now = app.service->snapshot();
  EXPECT_EQ(now.num_waiting_prompt_tokens, 0);
  EXPECT_EQ(std::accumulate(now.num_ended.begin(), now.num_ended.end(), int64_t{0}),
            now.num_accepted);
  EXPECT_GE(now.num_accepted, kRequests * 4 / 5);
  app.expect_soon("sluice:prefill_remaining_tokens", 0);
  app.server->drain(std::chrono::hours(1));
  EXPECT_GE(num_logged, kRequests * 4 / 5);
}

}  // namespace
}  // namespace sluice::server
