// A server whose engine has several ranks: one that fails ends every answer with its error, and the
// server is dead. That all else is as with one rank is shown by the entries server_app_ranks_test
// and service_ranks_test of ctest.
#include <atomic>
#include <memory>

#include <gtest/gtest.h>

#include "engine/ranks/failing_link.h"
#include "server/app/rig.h"

namespace sluice::server {
namespace {

using http::has;
using http::RawClient;
using http::status_of;
using testing::App;
using testing::AppOptions;
using testing::body_of;
using testing::Json;
using testing::kCompletions;
using testing::long_request;
using testing::post;
using testing::post_text;

TEST(AppRanks, AFailedRankEndsEveryAnswerWithItsError) {
  std::atomic<bool> fails = false;
  AppOptions options;
  options.engine.tensor_parallel_size = 2;
  options.make_device = [&](int32_t) {
    return make_device_with_hook("cpu", {.num_threads = 1},
                                 std::make_unique<testing::FailingLink>(fails));
  };
  App app(options);
  app.serve();
  EXPECT_EQ(status_of(app.get("/health")), 200);
  app.brake.pause_ms = 2;
  RawClient stream(app.server->port()), whole(app.server->port());
  stream.send(post_text(kCompletions, long_request(true).dump()));
  whole.send(post_text(kCompletions, long_request(false).dump()));
  stream.read_until("\"text\":");
  ASSERT_TRUE(testing::happens_soon([&] { return app.service->snapshot().num_running == 2; }));
  fails = true;
  const std::string rest = stream.read_until("0\r\n\r\n");
  EXPECT_TRUE(has(rest, "rank 1 of 2")) << rest;
  EXPECT_TRUE(has(rest, "the link is gone")) << rest;
  EXPECT_TRUE(has(rest, "data: [DONE]\n\n\r\n0\r\n\r\n")) << rest;
  const std::string body = whole.read_answer();
  EXPECT_EQ(status_of(body), 500) << body;
  EXPECT_TRUE(has(body, "rank 1 of 2")) << body;
  EXPECT_TRUE(has(body, "\r\nx-should-retry: false\r\n")) << body;
  const std::string health = app.get("/health");
  EXPECT_EQ(status_of(health), 503);
  EXPECT_EQ(body_of(health)["status"], "dead");
  EXPECT_EQ(status_of(post(app, kCompletions, long_request(false))), 503);
}

}  // namespace
}  // namespace sluice::server
