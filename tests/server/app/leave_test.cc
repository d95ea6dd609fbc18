// Clients that leave or hardly read, over KV in host memory: what the engine holds for them is
// freed soon, what it has computed is found by a retry, and others get exactly what they get alone.
#include <thread>

#include <gtest/gtest.h>

#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::body_of;
using testing::happens_soon;
using testing::joined;
using testing::Json;
using testing::kCompletions;
using testing::long_request;
using testing::milliseconds;
using testing::post;
using testing::post_text;

// Blocks have 16 tokens.
AppOptions offloaded(KvOffload offload) {
  constexpr int64_t kBlockBytes = 2 * 2 * 2 * 16 * 32 * sizeof(BFloat16);  // all layers
  AppOptions options;
  options.engine.max_model_len = 512;
  options.engine.kv.offload = offload;
  options.engine.kv.num_slots = 2;
  options.engine.kv.slot_blocks = 1;
  options.engine.kv.host_bytes = kBlockBytes * 256;
  if (offload == KvOffload::kLayerwise) {
    options.engine.max_num_batched_tokens = 1024;
    options.engine.prefill_chunk_tokens.reset();
  }
  return options;
}

class Leaving : public ::testing::TestWithParam<std::tuple<KvOffload, bool, bool>> {
 protected:
  KvOffload offload() const { return std::get<0>(GetParam()); }
  bool is_stream() const { return std::get<1>(GetParam()); }
  void leave(RawClient& client) const {
    std::get<2>(GetParam()) ? client.reset() : client.close_now();
  }
  Json request() const {
    Json request = long_request(is_stream());
    request["prompt"] = std::string(480, 'x') + "abcdefgh";
    request["max_tokens"] = 20;
    return request;
  }
  static void expect_freed(const App& app, int num_left) {
    EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
    app.expect_soon("sluice:requests_aborted_total{reason=disconnect}", num_left);
  }
  // What a retry finds in the prefix cache.
  int64_t cached_of_retry(const App& app) const {
    Json retry = request();
    retry["stream"] = false;
    const std::string answer = post(app, kCompletions, retry);
    EXPECT_EQ(status_of(answer), 200) << answer;
    return body_of(answer)["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  }
};

// The pass that it shares with no other request ends; blocks that were complete before are found
// again. A layer-wise pass completes its blocks at its end only.
TEST_P(Leaving, InPrefill) {
  const bool in_chunks = offload() == KvOffload::kChunked;
  App app(offloaded(offload()));
  app.serve();
  app.brake.pause_ms = in_chunks ? 20 : 0;
  app.brake.is_held = !in_chunks;
  RawClient client(app.server->port());
  client.send(post_text(kCompletions, request().dump()));
  // In chunks: two of eight are computed. Layer-wise: the step has begun, its pass has not.
  ASSERT_TRUE(happens_soon([&] {
    const ServiceSnapshot now = app.service->snapshot();
    return in_chunks ? now.stats.num_prompt_tokens >= 128 : now.num_waiting == 1;
  }));
  leave(client);
  EXPECT_TRUE(happens_soon([&] { return app.server->num_connections() == 0; }));
  app.brake.is_held = false;
  expect_freed(app, 1);
  EXPECT_EQ(app.service->snapshot().stats.num_generated_tokens, 0);
  const int64_t num_computed = app.service->snapshot().stats.num_prompt_tokens;
  EXPECT_LT(num_computed, 488);
  app.brake.pause_ms = 0;
  EXPECT_EQ(cached_of_retry(app), num_computed / 16 * 16);
  EXPECT_GE(num_computed, in_chunks ? 128 : 0);
}

TEST_P(Leaving, InDecode) {
  App app(offloaded(offload()));
  app.serve();
  app.brake.pause_ms = 10;
  RawClient client(app.server->port());
  client.send(post_text(kCompletions, request().dump()));
  ASSERT_TRUE(happens_soon([&] { return app.service->snapshot().stats.num_generated_tokens > 3; }));
  leave(client);
  expect_freed(app, 1);
  EXPECT_LT(app.service->snapshot().stats.num_generated_tokens, 20);
  app.brake.pause_ms = 0;
  EXPECT_EQ(cached_of_retry(app), 480) << "whole blocks before the last token";
}

INSTANTIATE_TEST_SUITE_P(Ways, Leaving,
                         ::testing::Combine(::testing::Values(KvOffload::kChunked,
                                                              KvOffload::kLayerwise),
                                            ::testing::Bool(), ::testing::Bool()));

// Half of a head, and half of a body: no request has begun.
TEST(AppLeave, BeforeTheRequestIsComplete) {
  App app;
  app.serve();
  const std::string whole = post_text(kCompletions, long_request(true).dump());
  for (const size_t size : {size_t{10}, whole.size() - 1}) {
    for (const bool resets : {false, true}) {
      RawClient client(app.server->port());
      client.send(whole.substr(0, size));
      std::this_thread::sleep_for(milliseconds(20));
      resets ? client.reset() : client.close_now();
    }
  }
  EXPECT_EQ(status_of(app.get("/health")), 200);
  EXPECT_EQ(app.service->snapshot().num_accepted, 0);
}

// It takes one byte and then none; the others get all events, and the text that they get alone.
TEST(AppLeave, AClientThatHardlyReadsDisturbsNobody) {
  constexpr int kOthers = 12;
  AppOptions options;
  options.http.client_buffer_bytes = 64 << 10;
  App app(options);
  app.serve();
  Json request = long_request(true);
  request["max_tokens"] = 200;
  const auto alone = joined(testing::stream(app, kCompletions, request), 1);
  Json greedy = long_request(true);
  greedy["logprobs"] = 20;
  greedy["n"] = 12;
  RawClient slow(app.server->port(), 2048);
  slow.send(post_text(kCompletions, greedy.dump()));
  slow.read_byte();
  std::vector<testing::Streamed> streamed(kOthers);
  std::vector<std::thread> others;
  for (int i = 0; i < kOthers; ++i) {
    others.emplace_back(
        [&, i] { streamed[i] = joined(testing::stream(app, kCompletions, request), 1); });
  }
  for (std::thread& other : others) other.join();
  for (const testing::Streamed& one : streamed) {
    EXPECT_EQ(one.texts[0], alone.texts[0]);
    EXPECT_EQ(one.reasons[0], "length");
  }
  app.expect_soon("sluice:requests_aborted_total{reason=slow_client}", 1);
  EXPECT_TRUE(happens_soon([&] { return app.is_free(); }));
  app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=499}", 1);
  app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=200}", kOthers + 1);
}

}  // namespace
}  // namespace sluice::server
