// Code that throws: each time one request is answered with an error, and everything else goes on.
#include <atomic>
#include <mutex>
#include <new>

#include <gtest/gtest.h>

#include "server/app/rig.h"
#include "server/app/routes.h"
#include "server/app/worker_pool.h"

namespace sluice::server {
namespace {

using http::has;
using http::RawClient;
using http::status_of;
using testing::App;
using testing::Json;

TEST(WorkerPool, WorkThatThrowsEndsNothingElse) {
  std::atomic<int> num_run = 0;
  {
    WorkerPool workers(1);
    workers.post([] { throw std::bad_alloc(); });
    workers.post([] { throw 7; });
    workers.post([&] { ++num_run; });
  }
  EXPECT_EQ(num_run, 1);
}

void throw_no_memory(const Call&, std::shared_ptr<const ServedModel>) { throw std::bad_alloc(); }
void throw_error(const Call&, std::shared_ptr<const ServedModel>) {
  throw std::runtime_error("it \"broke\"\n");
}
void throw_number(const Call&, std::shared_ptr<const ServedModel>) { throw 7; }
void answer_well(const Call& call, std::shared_ptr<const ServedModel>) { call.answer_json("{}"); }

// Routes of its own on the model of an App, with a log.
class ThrowingRoutes : public ::testing::Test {
 protected:
  ThrowingRoutes() {
    app_.serve();
    state_.set_model(std::make_shared<ServedModel>(*app_.service, testing::app_engine().model,
                                                   testing::app_engine().chat_template));
    context_.log = [this](const metrics::RequestLogEntry& entry) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(entry);
    };
    http::ServerOptions options;
    add_model_route(options.router, context_,
                    {.method = "GET", .pattern = "/memory", .answering = throw_no_memory});
    add_model_route(options.router, context_,
                    {.method = "GET", .pattern = "/error", .answering = throw_error});
    add_model_route(options.router, context_,
                    {.method = "GET", .pattern = "/number", .answering = throw_number});
    add_model_route(options.router, context_,
                    {.method = "GET", .pattern = "/well", .answering = answer_well});
    server_ = std::make_unique<http::HttpServer>(std::move(options));
  }
  std::string get(const std::string& path) const {
    RawClient client(server_->port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n");
    return client.read_answer();
  }

  App app_;
  ServerState state_{{"m"}};
  std::mutex mutex_;
  std::vector<metrics::RequestLogEntry> lines_;
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>(1);
  Delivery delivery_;
  ServerContext context_{.state = state_, .workers = *workers_, .delivery = delivery_};
  std::unique_ptr<http::HttpServer> server_;
};

TEST_F(ThrowingRoutes, AreAnsweredAndLogged) {
  const std::string memory = get("/memory");
  EXPECT_EQ(status_of(memory), 503) << memory;
  EXPECT_TRUE(has(memory, "\r\nRetry-After: ")) << "a smaller load may help";
  const std::string error = get("/error");
  EXPECT_EQ(status_of(error), 500) << error;
  EXPECT_TRUE(has(error, "\r\nx-should-retry: false\r\n")) << error;
  EXPECT_EQ(status_of(get("/number")), 500);
  EXPECT_EQ(status_of(get("/well")), 200) << "the thread lives";
  server_.reset();
  workers_.reset();
  ASSERT_EQ(lines_.size(), 4U);
  EXPECT_EQ(lines_[0].status, 503);
  EXPECT_EQ(lines_[1].status, 500);
  EXPECT_TRUE(request_log_text(lines_[1]).ends_with(" error=\"it 'broke'?\""))
      << request_log_text(lines_[1]);
  EXPECT_EQ(Json::parse(request_log_json(lines_[1]))["error"], "it \"broke\"\n");
  EXPECT_EQ(lines_[3].error, "");
}

// Every line is lost, and nothing but lines.
TEST(AppFaults, ALogThatThrowsLosesItsLine) {
  App app({.log = [](const metrics::RequestLogEntry&) { throw std::runtime_error("disk full"); }});
  app.serve();
  for (const bool is_stream : {false, true}) {
    const Json request = {{"prompt", "abc"}, {"max_tokens", 3}, {"stream", is_stream}};
    EXPECT_EQ(status_of(testing::post(app, "/v1/completions", request)), 200);
  }
  EXPECT_EQ(status_of(testing::post(app, "/v1/completions", {{"n", 0}})), 400);
  EXPECT_EQ(status_of(app.get("/none")), 404);
  app.expect_soon("sluice:http_requests_total{route=/v1/completions,code=400}", 1);
}

}  // namespace
}  // namespace sluice::server
