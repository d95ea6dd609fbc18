// The ends of `sluice serve`: signals while it is idle, reads a prompt and streams, and an engine
// that fails.
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cli/nan_weights.h"
#include "cli/serve/server_under_test.h"
#include "cli/tiny_program.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

using http::has;
using http::RawClient;
using http::status_of;

class Serve : public Program {
 protected:
  // A server of the tiny model, on any free port.
  static std::vector<std::string> words(std::vector<std::string> more) {
    more.insert(more.end(), {"--port", "0"});
    return on_tiny("serve", std::move(more));
  }
  // A stream that goes on for much longer than a test.
  static std::string endless(const std::string& prompt, int max_tokens = 15'000) {
    return post_text("/v1/completions",
                     R"({"stream":true,"ignore_eos":true,"return_progress":true,"max_tokens":)" +
                         std::to_string(max_tokens) + R"(,"prompt":")" + prompt + "\"}");
  }
  static std::unique_ptr<RawClient> streaming(const ServerUnderTest& server) {
    auto client = std::make_unique<RawClient>(server.port());
    client->send(endless("Once"));
    EXPECT_TRUE(has(client->read_until("\"text\":\""), "200 OK"));
    return client;
  }
  static void expect_aborted(RawClient& client) {
    const std::string rest = client.read_all();
    EXPECT_TRUE(has(rest, "\"finish_reason\":\"abort\"")) << rest;
    EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n")) << rest;
  }
};

TEST_F(Serve, EndsWithASignalWhenItIsIdle) {
  for (const int signal : {SIGTERM, SIGINT}) {
    ServerUnderTest server(words({"--drain-timeout", "600"}));
    RawClient idle(server.port());  // no request: it must not be waited for
    server.send_signal(signal);
    EXPECT_EQ(server.wait_exit(), 0) << server.log();
    EXPECT_TRUE(server.has_logged("draining"));
  }
}

// A prompt of seconds: its stream ends as after a drain, and so does the process.
TEST_F(Serve, EndsWhileItReadsAPrompt) {
  ServerUnderTest server(words({"--drain-timeout", "0"}));
  std::string prompt;
  for (int i = 0; i < 7'000; ++i) prompt += "a b ";
  RawClient client(server.port());
  client.send(endless(prompt, 1000));
  client.read_until("prompt_progress");
  server.send_signal(SIGTERM);
  expect_aborted(client);
  EXPECT_EQ(server.wait_exit(), 0) << server.log();
}

// They get their time, then an end each; what comes meanwhile is told to come later.
TEST_F(Serve, EndsStreamsAfterTheirTime) {
  ServerUnderTest server(words({"--drain-timeout", "1"}));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 32; ++i) clients.push_back(streaming(server));
  RawClient late(server.port());
  server.send_signal(SIGTERM);
  EXPECT_TRUE(ServerUnderTest::wait_for([&] {
    late.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    const std::string health = late.read_answer();
    return status_of(health) == 503 && has(health, "draining");
  }));
  for (const auto& client : clients) expect_aborted(*client);
  EXPECT_EQ(server.wait_exit(), 0) << server.log();
}

TEST_F(Serve, ASecondSignalEndsItNow) {
  for (const int second : {SIGTERM, SIGINT}) {
    ServerUnderTest server(words({"--drain-timeout", "600"}));
    const auto client = streaming(server);
    server.send_signal(SIGTERM);
    ASSERT_TRUE(ServerUnderTest::wait_for([&] { return server.has_logged("draining"); }));
    server.send_signal(second);
    EXPECT_EQ(server.wait_exit(), 128 + second) << server.log();
    EXPECT_FALSE(has(client->read_all(), "[DONE]")) << "cut, not complete";
  }
}

// The port is free at once, although a client still holds its end of a connection.
TEST_F(Serve, StartsAgainAfterItWasKilled) {
  uint16_t port = 0;
  std::unique_ptr<RawClient> client;
  {
    ServerUnderTest server(words({}));
    port = server.port();
    client = streaming(server);
    server.send_signal(SIGKILL);
    EXPECT_EQ(server.wait_exit(), 128 + SIGKILL);
  }
  ServerUnderTest again(on_tiny("serve", {"--port", std::to_string(port)}));
  EXPECT_EQ(again.port(), port);
  EXPECT_TRUE(streaming(again) != nullptr);
}

// What it says is lost, so it is found by its socket.
class Unheard : public Serve {
 protected:
  ~Unheard() override {
    if (child_ > 0) kill(child_, SIGKILL);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }

  // `in_child` changes its descriptors.
  void start(const std::function<void()>& in_child) {
    std::vector<std::string> words = on_tiny("serve", {"--uds", socket()});
    words.insert(words.begin(), SLUICE_PROGRAM);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    child_ = fork();
    if (child_ == 0) {
      std::signal(SIGPIPE, SIG_DFL);  // as a shell starts it
      in_child();
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    EXPECT_TRUE(ServerUnderTest::wait_for([&] { return listens(); }));
    EXPECT_TRUE(ServerUnderTest::wait_for([&] { return status_of(get("/health")) == 200; }));
  }
  bool listens() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    socket().copy(address.sun_path, sizeof(address.sun_path) - 1);
    const bool result =
        connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return result;
  }
  std::string get(const std::string& path) const {
    RawClient client(socket());
    client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read_answer();
  }
  void complete() const {
    RawClient client(socket());
    client.send(post_text("/v1/completions", R"({"prompt":"Once","max_tokens":2})"));
    EXPECT_EQ(status_of(client.read_answer()), 200);
  }
  int num_lost_lines() const {
    const std::string page = get("/metrics");
    const size_t at = page.find("\nsluice:log_lines_lost_total{");
    if (at == std::string::npos) return -1;
    return std::stoi(page.substr(page.find("} ", at) + 2));
  }
  // The status after SIGTERM.
  int end() {
    kill(child_, SIGTERM);
    int status = 0;
    waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string socket() const { return (place_.path() / "socket").string(); }

  pid_t child_ = -1;
  TempDir place_;
};

// As `2>&1 | logger` whose logger ends.
TEST_F(Unheard, LivesWithoutTheReaderOfItsLog) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  start([&] {
    dup2(ends[1], STDERR_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
  });
  close(ends[1]);
  EXPECT_EQ(num_lost_lines(), 0);
  complete();
  close(ends[0]);
  for (int i = 0; i < 3; ++i) complete();
  EXPECT_TRUE(ServerUnderTest::wait_for([&] { return num_lost_lines() >= 3; })) << num_lost_lines();
  EXPECT_EQ(end(), 0);
}

// As `2>&1 | less`: a page is read, and then nothing.
TEST_F(Unheard, GoesOnBesideAReaderOfItsLogThatStandsStill) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  start([&] { dup2(ends[1], STDERR_FILENO); });
  fcntl(ends[1], F_SETPIPE_SZ, 4096);
  for (int i = 0; i < 60; ++i) complete();
  EXPECT_TRUE(ServerUnderTest::wait_for([&] { return num_lost_lines() >= 10; }))
      << num_lost_lines();
  EXPECT_EQ(end(), 0);
  close(ends[0]);
  close(ends[1]);
}

// The lowest free descriptors would be those of the socket and of files.
TEST_F(Unheard, LivesWithoutStandardDescriptors) {
  start([] {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
  });
  complete();
  EXPECT_TRUE(ServerUnderTest::wait_for([&] { return num_lost_lines() >= 3; }));
  for (const char* fd : {"0", "1", "2"}) {
    const std::string path = "/proc/" + std::to_string(child_) + "/fd/" + fd;
    EXPECT_EQ(std::filesystem::read_symlink(path), "/dev/null") << fd;
  }
  EXPECT_EQ(end(), 0);
}

// The signal of a terminal that was closed; under nohup it is ignored.
TEST_F(Serve, DrainsWhenItsTerminalIsClosed) {
  ServerUnderTest server(words({"--drain-timeout", "600"}));
  server.send_signal(SIGHUP);
  EXPECT_EQ(server.wait_exit(), 0) << server.log();
  EXPECT_TRUE(server.has_logged("draining"));
}

// A limit of file sizes takes the place of a full disk.
TEST_F(Serve, SaysThatItsStoreCannotBeWritten) {
  const TempDir store;
  const auto limit = [] {
    const rlimit bytes = {6000, 6000};
    setrlimit(RLIMIT_FSIZE, &bytes);
  };
  ServerUnderTest server(
      words({"--kv-store", store.path().string(), "--kv-store-min-tokens", "0", "--log-json"}),
      limit);
  std::string prompt;
  for (int i = 0; i < 400; ++i) prompt += "a b ";
  for (int i = 0; i < 2; ++i) {
    RawClient client(server.port());
    client.send(post_text("/v1/completions", R"({"max_tokens":1,"prompt":")" + prompt + "\"}"));
    EXPECT_EQ(status_of(client.read_answer()), 200);
    prompt = "b " + prompt;
  }
  EXPECT_TRUE(ServerUnderTest::wait_for([&] {
    return server.has_logged("KV store: cannot write");
  })) << server.log();
  const auto get = [&](const std::string& path) {
    RawClient client(server.port());
    client.send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read_answer();
  };
  EXPECT_TRUE(has(get("/sluice/state"), "KV store: cannot write"));
  const std::string page = get("/metrics");
  for (const char* name : {"sluice:store_write_errors_total", "sluice:warnings_total"}) {
    const size_t at = page.find("\n" + std::string(name) + "{");
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_EQ(page.substr(page.find("} ", at) + 2, 2), "1\n") << name;
  }
  server.send_signal(SIGTERM);
  EXPECT_EQ(server.wait_exit(), 0);
  const std::string log = server.log();
  const size_t first = log.find("KV store: cannot write");
  EXPECT_EQ(log.find("KV store: cannot write", first + 1), std::string::npos) << log;
  EXPECT_TRUE(has(log, R"("event":"warning","warning":"KV store)")) << log;
}

// Every answer says that the engine failed, /health says so as long as the process lives, and it
// ends with a status that makes a supervisor start it again.
TEST(ServeDeath, AnEngineThatFailsEndsTheProcess) {
  const TempDir model;
  const std::filesystem::path needle = testing::source_dir() / "models/needle";
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::create_symlink(needle / name, model.path() / name);
  }
  model.write("model.safetensors", with_nan(slurp(needle / "model.safetensors")));
  ServerUnderTest server({"serve", "-m", model.path().string(), "--port", "0", "--kv-offload",
                          "off", "--kv-cache-bytes", "96M"});
  RawClient health(server.port());
  const std::string ask = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  health.send(ask);
  EXPECT_EQ(status_of(health.read_answer()), 200);
  RawClient client(server.port());
  client.send(post_text("/v1/completions", R"({"prompt":"Once","max_tokens":2})"));
  const std::string answer = client.read_answer();
  EXPECT_EQ(status_of(answer), 500) << answer;
  EXPECT_TRUE(has(answer, "NaN")) << answer;
  EXPECT_TRUE(has(answer, "x-should-retry: false")) << answer;
  health.send(ask);
  const std::string dead = health.read_answer();
  EXPECT_EQ(status_of(dead), 503) << dead;
  EXPECT_TRUE(has(dead, "dead")) << dead;
  const auto failed_at = std::chrono::steady_clock::now();
  EXPECT_EQ(server.wait_exit(), 1) << server.log();
  EXPECT_LT(std::chrono::steady_clock::now() - failed_at, std::chrono::seconds(5));
  EXPECT_TRUE(server.has_logged("the engine failed")) << server.log();
}

}  // namespace
}  // namespace sluice::cli
