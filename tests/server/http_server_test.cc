// Requests and answers through real sockets: framing, limits of size and time, and the end.
#include "server/http/http_server.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "io/json_type.h"
#include "server/echo_server.h"
#include "server/raw_client.h"
#include "sluice/error.h"

namespace sluice::http {
namespace {

using namespace std::chrono_literals;

const std::string kGetEcho = "GET /echo/a%2Fb HTTP/1.1\r\nHost: a\r\n\r\n";

std::string post(const std::string& body, const std::string& fields = {}) {
  return "POST /echo HTTP/1.1\r\nHost: a\r\n" + fields +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  HttpServer server(echo_options());
  RawClient client(server.port());
  client.send(post("hello", "X-Request-Id: id-7\r\n"));
  const std::string first = client.read_answer();
  EXPECT_EQ(status_of(first), 200);
  EXPECT_TRUE(first.ends_with("\r\n\r\nhello")) << first;
  EXPECT_TRUE(has(first, "X-Request-Id: id-7\r\n")) << first;
  EXPECT_FALSE(has(first, "Connection: close"));
  client.send(kGetEcho);
  EXPECT_TRUE(client.read_answer().ends_with("\r\n\r\na/b"));
  EXPECT_EQ(server.num_connections(), 1u);
}

struct Bad {
  std::string wire;
  int status;
  bool closes;
};

TEST(HttpServer, FaultsAreTypedAndCloseWhereTheyMust) {
  HttpServer server(echo_options());
  const Bad table[] = {
      {"GET /none HTTP/1.1\r\nHost: a\r\n\r\n", 404, false},
      {"GET /echo/%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400, false},
      {"GET /throw HTTP/1.1\r\nHost: a\r\n\r\n", 500, false},
      {"GET /drop HTTP/1.1\r\nHost: a\r\n\r\n", 500, false},
      {"DELETE /echo HTTP/1.1\r\nHost: a\r\n\r\n", 405, true},
      {"POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", 404, true},
      {"POST /echo HTTP/1.1\r\nHost: a\r\n\r\n", 411, true},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413, true},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, true},
      {std::string("\x16\x03\x01\x02\x00", 5), 400, true},
      {"GET /" + std::string(1'000'000, 'a') + " HTTP/1.1\r\n", 414, true},
      {"GET / HTTP/1.1\r\nA: " + std::string(1'000'000, 'a') + "\r\n", 431, true},
      {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
           std::string(2'000'000, 'a'),
       400, true},
  };
  for (const Bad& bad : table) {
    RawClient client(server.port());
    client.send(bad.wire);
    const std::string answer = client.read_answer();
    ASSERT_EQ(status_of(answer), bad.status) << bad.wire.substr(0, 80);
    EXPECT_EQ(has(answer, "Connection: close"), bad.closes) << answer;
    const auto error = nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n")))["error"];
    EXPECT_EQ(error["code"], nullptr);
    EXPECT_TRUE(error["message"].is_string() && error["type"].is_string());
    EXPECT_TRUE(error["param"].is_null());
    EXPECT_FALSE(has(answer, "secret"));
    if (bad.closes) {
      client.half_close();
      client.read_all();
      EXPECT_TRUE(client.at_end()) << bad.wire.substr(0, 80);
    } else {
      client.send(kGetEcho);
      EXPECT_EQ(status_of(client.read_answer()), 200);
    }
  }
}

TEST(HttpServer, AllowNamesTheMethods) {
  HttpServer server(echo_options());
  RawClient client(server.port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_TRUE(has(answer, "Allow: POST\r\n")) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n")) << "an answer to HEAD has no body";
}

TEST(HttpServer, AThousandPipelinedRequestsAreAnsweredInOrder) {
  HttpServer server(echo_options());
  RawClient client(server.port());
  std::string wire;
  for (int i = 0; i < 1000; ++i) wire += post(std::to_string(i));
  ASSERT_TRUE(client.send(wire));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(client.read_answer().ends_with("\r\n\r\n" + std::to_string(i))) << i;
  }
}

TEST(HttpServer, OneByteChunksAreCountedOnTheWire) {
  Limits limits;
  limits.body_bytes = 1 << 20;
  HttpServer server(echo_options(limits));
  std::string chunks;
  for (int i = 0; i < 100'000; ++i) chunks += "1\r\nx\r\n";
  const std::string head = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  RawClient small(server.port());
  small.send(head + chunks + "0\r\n\r\n");
  EXPECT_TRUE(small.read_answer().ends_with("\r\n\r\n" + std::string(100'000, 'x')));
  // Codings are named in any case of letters.
  small.send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\n\r\n1\r\ny\r\n0\r\n\r\n");
  EXPECT_TRUE(small.read_answer().ends_with("\r\n\r\ny"));
  RawClient large(server.port());
  large.send(head + chunks + chunks);
  EXPECT_EQ(status_of(large.read_answer()), 413);
}

TEST(HttpServer, SlowSendersGet408AndIdleOnesAreClosed) {
  Limits limits;
  limits.head_time = 100ms;
  limits.body_silence = 100ms;
  limits.idle_time = 100ms;
  HttpServer server(echo_options(limits));
  RawClient idle(server.port());
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.at_end());
  RawClient head(server.port());
  head.send("GET / HT");
  EXPECT_EQ(status_of(head.read_answer()), 408);
  RawClient body(server.port());
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_EQ(status_of(body.read_answer()), 408);
}

TEST(HttpServer, SendsContinueOnce) {
  HttpServer server(echo_options());
  RawClient client(server.port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ab");
  EXPECT_TRUE(client.read_answer().ends_with("\r\n\r\nab"));
}

TEST(HttpServer, ClosesAfterHttp10AndOnRequest) {
  HttpServer server(echo_options());
  for (const std::string wire : {"GET /echo/a HTTP/1.0\r\n\r\n",
                                 "GET /echo/a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"}) {
    RawClient client(server.port());
    client.send(wire);
    const std::string answer = client.read_all();
    EXPECT_TRUE(has(answer, "Connection: close")) << answer;
    EXPECT_TRUE(answer.ends_with("\r\n\r\na")) << answer;
  }
}

TEST(HttpServer, TheGateIsAskedBeforeTheBody) {
  ServerOptions options = echo_options();
  options.gate = [](const Request& request) -> std::optional<Fault> {
    if (request.find("authorization") != nullptr) return std::nullopt;
    return Fault{.status = 401, .message = "no key"};
  };
  HttpServer server(std::move(options));
  RawClient without(server.port());
  without.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  const std::string answer = without.read_answer();
  EXPECT_EQ(status_of(answer), 401);
  EXPECT_TRUE(has(answer, "AuthenticationError"));
  RawClient with(server.port());
  with.send(post("x", "Authorization: k\r\n"));
  EXPECT_EQ(status_of(with.read_answer()), 200);
}

// Whoever finds an error, the route's clients read it in their own words; others are not touched.
TEST(HttpServer, ErrorsOfARouteHaveItsForm) {
  Limits limits;
  limits.body_bytes = 100;
  ServerOptions options = echo_options(limits);
  const FaultBody own = [](const Fault& fault, std::string_view request_id) {
    return "own " + std::to_string(fault.status) + " " + std::string(request_id);
  };
  const auto route = [&](const char* path, Handler handler) {
    options.router.add("POST", path, std::move(handler), own);
  };
  route("/own/drop", [](const Request&, const auto&) {});
  route("/own/throw", [](const Request&, const auto&) { throw std::runtime_error("secret"); });
  route("/own/fail", [](const Request&, const auto& exchange) { exchange->fail({.status = 404}); });
  options.gate = [](const Request& request) -> std::optional<Fault> {
    if (request.find("no-key") == nullptr) return std::nullopt;
    return Fault{.status = 401};
  };
  HttpServer server(std::move(options));
  const auto answer = [&](const std::string& line, const std::string& rest) {
    RawClient client(server.port());
    client.send(line + " HTTP/1.1\r\nHost: a\r\nX-Request-Id: r1\r\n" + rest);
    return client.read_answer();
  };
  const std::string empty = "Content-Length: 0\r\n\r\n";
  EXPECT_TRUE(answer("POST /own/drop", empty).ends_with("\r\n\r\nown 500 r1"));
  EXPECT_TRUE(answer("POST /own/throw", empty).ends_with("\r\n\r\nown 500 r1"));
  EXPECT_TRUE(answer("POST /own/fail", empty).ends_with("\r\n\r\nown 404 r1"));
  EXPECT_TRUE(answer("POST /own/%66ail", empty).ends_with("\r\n\r\nown 404 r1"));
  EXPECT_TRUE(answer("POST /own/fail", "no-key: 1\r\n" + empty).ends_with("own 401 r1"));
  EXPECT_TRUE(answer("GET /own/fail", "\r\n").ends_with("own 405 r1"));
  EXPECT_TRUE(
      answer("POST /own/fail", "Transfer-Encoding: chunked\r\n\r\nfff\r\n" + std::string(200, 'x'))
          .ends_with("own 413 r1"));
  EXPECT_TRUE(answer("POST /own/fail", "Content-Length: 101\r\n\r\n").ends_with("own 413 r1"));
  EXPECT_TRUE(has(answer("POST /own/unknown", empty), R"({"error":)"));
  RawClient client(server.port());
  client.send("POST /own/fail HTTP/1.1\r\nHost: a\r\n" + empty);
  EXPECT_TRUE(has(client.read_answer(), "own 404"));
  client.send("GET /drop HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(has(client.read_answer(), R"({"error":)")) << "the form of another request";
}

// Once for each answer that no handler gave, with the pattern of the route where there is one, and
// before the client has the answer.
TEST(HttpServer, ReportsWhatItRefuses) {
  Limits limits;
  limits.head_time = 100ms;
  limits.body_bytes = 10;
  ServerOptions options = echo_options(limits);
  options.gate = [](const Request& request) -> std::optional<Fault> {
    if (request.find("X-Refuse") == nullptr) return std::nullopt;
    return Fault{.status = 403, .message = "refused"};
  };
  std::mutex mutex;
  std::vector<std::string> reports;
  options.on_refusal = [&](const RefusedRequest& refused) {
    EXPECT_LE(Clock::now() - refused.arrived, 20s);
    const std::lock_guard lock(mutex);
    reports.push_back(std::to_string(refused.status) + " " + std::string(refused.route) + " " +
                      std::string(refused.id));
  };
  HttpServer server(std::move(options));
  const std::string id = "Host: a\r\nX-Request-Id: i\r\n";
  const std::pair<std::string, std::string> table[] = {
      {"GET /none HTTP/1.1\r\n" + id + "\r\n", "404  i"},
      {"GET /echo/%zz HTTP/1.1\r\n" + id + "\r\n", "400  i"},
      {"DELETE /echo/a HTTP/1.1\r\n" + id + "\r\n", "405 /echo/{} i"},
      {"GET /echo/a HTTP/1.1\r\nX-Refuse: 1\r\n" + id + "\r\n", "403 /echo/{} i"},
      {"GET /throw HTTP/1.1\r\n" + id + "\r\n", "500 /throw i"},
      {"POST /echo HTTP/1.1\r\n" + id + "\r\n", "411  "},
      {"POST /echo HTTP/1.1\r\n" + id + "Content-Length: 11\r\n\r\n", "413  "},
      {"POST /echo HTTP/1.1\r\n" + id + "Transfer-Encoding: chunked\r\n\r\nx", "400 /echo i"},
      {"GET / HT", "408  "},
  };
  for (const auto& [wire, report] : table) {
    RawClient client(server.port());
    client.send(wire);
    client.read_answer();
    const std::lock_guard lock(mutex);
    ASSERT_EQ(reports.size(), 1u) << wire;
    EXPECT_TRUE(reports[0].starts_with(report)) << reports[0] << " of " << wire;
    reports.clear();
  }
  RawClient client(server.port());
  client.send(kGetEcho);
  client.read_answer();
  EXPECT_TRUE(reports.empty()) << "it was answered";
}

TEST(HttpServer, ConnectionsAboveTheLimitAreClosed) {
  Limits limits;
  limits.num_connections = 200;
  HttpServer server(echo_options(limits));
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<RawClient>(server.port()));
  idle.back()->send(kGetEcho);
  EXPECT_EQ(status_of(idle.back()->read_answer()), 200);
  RawClient late(server.port());
  late.read_all();
  EXPECT_TRUE(late.at_end());
  idle.front()->close_now();
  while (server.num_connections() == 200) usleep(1000);
  RawClient next(server.port());
  next.send(kGetEcho);
  EXPECT_EQ(status_of(next.read_answer()), 200);
}

TEST(HttpServer, WithoutDescriptorsItWaitsAndGoesOn) {
  HttpServer server(echo_options());
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const int next = dup(0);
  close(next);
  rlimit few = old;
  few.rlim_cur = static_cast<rlim_t>(next) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  RawClient client(server.port());  // has the last descriptor
  client.send(kGetEcho);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(server.num_connections(), 0u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(status_of(client.read_answer()), 200);
}

class HttpUnixSocket : public ::testing::Test {
 protected:
  ~HttpUnixSocket() override { std::filesystem::remove(path_); }

  ServerOptions options() const {
    ServerOptions options = echo_options();
    options.unix_path = path_;
    return options;
  }
  void expect_answers() const {
    RawClient client(path_.string());
    client.send(kGetEcho);
    EXPECT_EQ(status_of(client.read_answer()), 200);
  }

  const std::filesystem::path path_ = std::filesystem::temp_directory_path() /
                                      ("sluice_http_" + std::to_string(getpid()) + ".sock");
};

TEST_F(HttpUnixSocket, IsMadeAndRemoved) {
  {
    HttpServer server(options());
    expect_answers();
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// As a server that was killed.
TEST_F(HttpUnixSocket, ThatWasLeftBehindIsReplaced) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, path_.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  close(fd);
  ASSERT_TRUE(std::filesystem::is_socket(path_));
  HttpServer server(options());
  expect_answers();
}

TEST_F(HttpUnixSocket, WithAListenerIsRefused) {
  HttpServer server(options());
  EXPECT_THROW(HttpServer{options()}, Error);
  expect_answers();
}

TEST_F(HttpUnixSocket, NeverTakesThePlaceOfAFile) {
  std::ofstream(path_) << "text";
  EXPECT_THROW(HttpServer{options()}, Error);
  EXPECT_EQ(std::filesystem::file_size(path_), 4u);
}

// Such as that of a server that was started after the socket was removed by hand.
TEST_F(HttpUnixSocket, OfAnotherStaysAtTheEnd) {
  {
    HttpServer server(options());
    std::filesystem::rename(path_, path_.string() + ".moved");
    std::ofstream(path_) << "text";
  }
  EXPECT_EQ(std::filesystem::file_size(path_), 4u);
  std::filesystem::remove(path_.string() + ".moved");
}

TEST_F(HttpUnixSocket, WithALongPathIsRefusedWithTheLimit) {
  ServerOptions long_path = options();
  long_path.unix_path = "/tmp/" + std::string(103, 'x');
  try {
    HttpServer server(long_path);
    FAIL() << "it listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string message = error.what();
    EXPECT_TRUE(has(message, long_path.unix_path)) << message;
    EXPECT_TRUE(has(message, " 108 bytes") && has(message, " 107;")) << message;
  }
}

TEST(HttpServer, ABadAddressIsAnError) {
  ServerOptions options = echo_options();
  options.address = "localhost";
  EXPECT_THROW(HttpServer{options}, Error);
  HttpServer server(echo_options());
  options.address = "127.0.0.1";
  options.port = server.port();
  EXPECT_THROW(HttpServer{options}, Error);
}

}  // namespace
}  // namespace sluice::http
