// Clients that try to break the server: requests with two meanings, requests without an end,
// clients that send or read one byte at a time, and more connections than there are descriptors.
// Each costs one connection, little time and no memory; others are answered meanwhile.
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "server/echo_server.h"
#include "server/raw_client.h"
#include "support/sanitizer.h"

namespace sluice::http {
namespace {

using namespace std::chrono_literals;

const std::string kGetOk = "GET /echo/ok HTTP/1.1\r\nHost: a\r\n\r\n";
// What the attacker wants to be taken for a request of its own.
const std::string kSmuggled = "GET /echo/smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

std::string head(const std::string& fields, const std::string& line = "POST /echo HTTP/1.1") {
  return line + "\r\nHost: a\r\n" + fields + "\r\n";
}

// Of this process: the clients are in it, too.
std::chrono::duration<double> cpu_time() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return std::chrono::duration<double>(seconds(use.ru_utime) + seconds(use.ru_stime));
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

bool is_answered(const HttpServer& server) {
  RawClient client(server.port());
  client.send(kGetOk);
  return client.read_answer().ends_with("\r\n\r\nok");
}

struct Attack {
  std::string_view name;
  std::string wire;
  int status = 400;
};

std::string chunked(const std::string& chunks) {
  return head("Transfer-Encoding: chunked\r\n") + chunks;
}

std::string one_byte_chunks(size_t count) {
  std::string chunks;
  for (size_t i = 0; i < count; ++i) chunks += "1\r\nx\r\n";
  return chunks;
}

std::vector<Attack> framing_attacks() {
  const std::string te = "Transfer-Encoding: chunked\r\n";
  const std::string cl = "Content-Length: 5\r\n";
  const std::string get = "GET /echo/a HTTP/1.1";
  const std::string body = "0\r\n\r\n" + kSmuggled;
  return {
      {"length and chunks", head(cl + te) + body},
      {"chunks and length", head(te + cl) + body},
      {"two lengths", head(cl + "Content-Length: 0\r\n") + body},
      {"two equal lengths", head(cl + cl) + body},
      {"list of lengths", head("Content-Length: 5, 5\r\n") + body},
      {"signed length", head("Content-Length: +5\r\n") + body},
      {"negative length", head("Content-Length: -5\r\n") + body},
      {"spaced length", head("Content-Length: 5 0\r\n") + body},
      {"huge length", head("Content-Length: 9223372036854775807\r\n") + body, 413},
      {"length of 20 digits", head("Content-Length: 18446744073709551621\r\n") + body},
      {"no length", head("") + kSmuggled, 411},
      {"chunked twice", head(te + te) + body},
      {"chunked, identity", head("Transfer-Encoding: chunked, identity\r\n") + body},
      {"xchunked", head("Transfer-Encoding: xchunked\r\n") + body},
      {"tab before chunked", head("Transfer-Encoding:\x0b"
                                  "chunked\r\n") +
                                 body},
      {"space before the colon", head("Transfer-Encoding : chunked\r\n") + body},
      {"chunks in 1.0", head(te, "POST /echo HTTP/1.0") + body},
      {"a GET with both", head(cl + te, get) + body},
      {"LF alone", "GET /echo/a HTTP/1.1\nHost: a\n\n" + kSmuggled},
      {"LF alone after a field", "GET /echo/a HTTP/1.1\r\nHost: a\nX: b\r\n\r\n" + kSmuggled},
      {"CR alone", head("A: b\rTransfer-Encoding: chunked\r\n") + body},
      {"continued field", head("A: b\r\n " + te) + body},
      {"NUL in a field", head(std::string("A: b\0c\r\n", 8), get) + kSmuggled},
      {"NUL in the target", std::string("GET /echo/a\0b HTTP/1.1\r\nHost: a\r\n\r\n", 35)},
      {"no Host", "GET /echo/a HTTP/1.1\r\n\r\n" + kSmuggled},
      {"two Hosts", head("Host: b\r\n", get) + kSmuggled},
      {"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(40, '\0')},
      {"TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + kSmuggled},
      {"Expect", head(cl + "Expect: 100-continue, x\r\n") + body, 417},
      {"gzip", head(cl + "Content-Encoding: gzip\r\n") + body, 415},
  };
}

std::vector<Attack> chunk_attacks() {
  return {
      {"no size", chunked("\r\n" + kSmuggled)},
      {"signed size", chunked("+1\r\nx\r\n0\r\n\r\n" + kSmuggled)},
      {"0x size", chunked("0x1\r\nx\r\n0\r\n\r\n" + kSmuggled)},
      {"size of 17 digits", chunked("10000000000000001\r\nx\r\n0\r\n\r\n" + kSmuggled)},
      {"size of 2^63", chunked("8000000000000000\r\nx\r\n" + kSmuggled)},
      {"size above the limit", chunked("ffffffff\r\nx\r\n" + kSmuggled), 413},
      {"LF after the size", chunked("1\nx\r\n0\r\n\r\n" + kSmuggled)},
      {"LF in an extension", chunked("1;a\nx\r\n0\r\n\r\n" + kSmuggled)},
      {"data longer than its size", chunked("1\r\nxy\r\n0\r\n\r\n" + kSmuggled)},
      {"LF in the trailers", chunked("0\r\nA: b\n\r\n" + kSmuggled)},
      {"a trailer without a name", chunked("0\r\n: b\r\n\r\n" + kSmuggled)},
      {"2 MB of extension", chunked("1;" + std::string(2'000'000, 'a') + "\r\nx\r\n")},
      {"an extension for each byte", chunked([] {
         std::string chunks;
         for (int i = 0; i < 10'000; ++i) chunks += "1;" + std::string(1000, 'e') + "\r\nx\r\n";
         return chunks;
       }()),
       413},
      {"3 MB in chunks of a byte", chunked(one_byte_chunks(3'000'000)), 413},
      {"20 kB of trailers",
       chunked("0\r\n" +
               [] {
                 std::string trailers;
                 for (int i = 0; i < 2'000; ++i) trailers += "Name: a\r\n";
                 return trailers;
               }() +
               "\r\n" + kSmuggled),
       431},
  };
}

std::vector<Attack> size_attacks() {
  std::string fields;
  for (int i = 0; i < 10'000; ++i) fields += "A: b\r\n";
  std::string short_fields;
  for (int i = 0; i < 101; ++i) short_fields += "A:\r\n";
  return {
      {"1 MB of header", head("A: " + std::string(1 << 20, 'a') + "\r\n") + kSmuggled, 431},
      {"10,000 fields", head(fields) + kSmuggled, 431},
      {"101 fields", head(short_fields, "GET /echo/a HTTP/1.1") + kSmuggled, 431},
      {"1 MB of target", "GET /" + std::string(1 << 20, 'a') + " HTTP/1.1\r\n" + kSmuggled, 414},
      {"1 MB of method", std::string(1 << 20, 'G'), 414},
      {"1 MB of spaces", std::string(1 << 20, ' '), 414},
  };
}

class Attacks : public ::testing::TestWithParam<std::vector<Attack> (*)()> {};

// One answer, typed; the connection ends with it; and what followed is never a request.
TEST_P(Attacks, AreRefusedAndClose) {
  const double slow = kSanitized ? 20 : 1;
  HttpServer server(echo_options());
  ASSERT_TRUE(is_answered(server));
  for (const Attack& attack : GetParam()()) {
    const auto cpu = cpu_time();
    RawClient client(server.port());
    client.send(attack.wire);
    const std::string answer = client.read_answer();
    EXPECT_EQ(status_of(answer), attack.status) << attack.name << ": " << answer;
    EXPECT_TRUE(has(answer, "\r\nConnection: close\r\n")) << attack.name;
    client.half_close();
    EXPECT_EQ(client.read_all(), "") << attack.name;
    EXPECT_TRUE(client.at_end()) << attack.name;
    EXPECT_FALSE(has(answer, "smuggled")) << attack.name;
    EXPECT_LT((cpu_time() - cpu).count(), 1 * slow) << attack.name;
  }
  EXPECT_TRUE(is_answered(server));
}

INSTANTIATE_TEST_SUITE_P(Kinds, Attacks,
                         ::testing::Values(&framing_attacks, &chunk_attacks, &size_attacks));

// The same connection attempts over and over leave nothing behind.
TEST(HttpAttack, LeavesNoMemoryBehind) {
  Limits limits;
  limits.linger = 10ms;
  HttpServer server(echo_options(limits));
  const auto attack = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      RawClient client(server.port());
      client.send(chunked(one_byte_chunks(50'000)) + "x");
      client.read_answer();
    }
  };
  attack(20);
  const size_t before = resident_bytes();
  attack(100);
  if (kSanitized) return;  // memory that was freed is kept back for a while
  EXPECT_LT(resident_bytes(), before + (size_t{16} << 20));
}

// Bytes that keep coming give no more time.
TEST(HttpAttack, DrippedHeadsAndBodiesEndInTime) {
  Limits limits;
  limits.head_time = 200ms;
  limits.body_grace = 200ms;
  HttpServer server(echo_options(limits));
  for (const std::string& begin :
       {std::string("GET / HTTP/1.1\r\nA: "), head("Content-Length: 100000\r\n"),
        head("Transfer-Encoding: chunked\r\n") + "ffff\r\n"}) {
    RawClient client(server.port());
    client.send(begin);
    const TimePoint start = Clock::now();
    std::thread drip([&] {
      while (Clock::now() - start < 20s && client.send("x")) std::this_thread::sleep_for(5ms);
    });
    const std::string answer = client.read_answer();
    EXPECT_EQ(status_of(answer), 408) << begin << answer;
    EXPECT_LT(Clock::now() - start, 10s);
    EXPECT_TRUE(is_answered(server));
    client.half_close();
    drip.join();
  }
}

// An answer that is not taken is dropped after the stall limit, whole answers as well as streams.
TEST(HttpAttack, AnAnswerThatNobodyReadsIsDropped) {
  Limits limits;
  limits.client_stall = 200ms;
  ServerOptions options = echo_options(limits);
  options.router.add("GET", "/large", [](const Request&, const auto& exchange) {
    exchange->answer({.body = std::string(size_t{32} << 20, 'x')});
  });
  HttpServer server(std::move(options));
  RawClient client(server.port(), 4096);
  client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
  client.read_byte();
  const TimePoint end = Clock::now() + 20s;
  while (server.num_connections() > 0 && Clock::now() < end) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(server.num_connections(), 0U);
}

// Sets the soft limit of descriptors as long as it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &old_);
    rlimit next = old_;
    next.rlim_cur = std::min(limit, old_.rlim_max);
    setrlimit(RLIMIT_NOFILE, &next);
    num_ = next.rlim_cur;
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &old_); }
  rlim_t num() const { return num_; }

 private:
  rlimit old_{};
  rlim_t num_ = 0;
};

// The limit below which this many descriptors are free: some may have been inherited.
rlim_t limit_with_free(int count) {
  int end = 0;
  for (; count > 0; ++end) count -= fcntl(end, F_GETFD) == -1 ? 1 : 0;
  return static_cast<rlim_t>(end);
}

// Both ends of each are in this process.
TEST(HttpAttack, ThousandsOfIdleConnectionsCostLittle) {
  const DescriptorLimit descriptors(20'300);
  const size_t count = std::min<size_t>(10'000, (descriptors.num() - 200) / 2);
  Limits limits;
  limits.num_connections = 20'000;
  limits.head_time = 10min;
  limits.idle_time = 10min;
  HttpServer server(echo_options(limits));
  ASSERT_TRUE(is_answered(server));
  const size_t before = resident_bytes();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (size_t i = 0; i < count; ++i) {
    idle.push_back(std::make_unique<RawClient>(server.port()));
    if (i % 2 == 0) idle.back()->send("GET /");  // half a request
  }
  while (server.num_connections() < count) std::this_thread::sleep_for(1ms);
  const auto cpu = cpu_time();
  EXPECT_TRUE(is_answered(server));
  std::this_thread::sleep_for(100ms);
  if (!kSanitized) {
    EXPECT_LT((cpu_time() - cpu).count(), 0.05) << "idle connections must not be polled";
    EXPECT_LT((resident_bytes() - before) / count, size_t{32} << 10);
  }
  idle.back()->send(kGetOk);
  EXPECT_EQ(status_of(idle.back()->read_answer()), count % 2 == 0 ? 200 : 400);
  idle.clear();
  const TimePoint end = Clock::now() + 20s;
  while (server.num_connections() > 0 && Clock::now() < end) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(server.num_connections(), 0U);
}

// Without descriptors the server waits without work, and goes on when there are some again. Of 64
// the clients, which are in this process, take 40.
TEST(HttpAttack, SixtyFourDescriptorsAreEnough) {
  HttpServer server(echo_options());
  const DescriptorLimit descriptors(limit_with_free(64));
  std::vector<int> reserved;
  for (int i = 0; i < 40; ++i) reserved.push_back(dup(0));
  std::vector<std::unique_ptr<RawClient>> clients;
  for (const int descriptor : reserved) {
    close(descriptor);
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(kGetOk);
  }
  for (int i = 0; i < 24; ++i) EXPECT_EQ(status_of(clients[i]->read_answer()), 200) << i;
  const auto cpu = cpu_time();
  std::this_thread::sleep_for(300ms);
  EXPECT_EQ(server.num_connections(), 24U);
  EXPECT_LT((cpu_time() - cpu).count(), 0.15) << "it must not ask again and again";
  for (int i = 0; i < 20; ++i) clients[i]->close_now();
  for (int i = 24; i < 40; ++i) EXPECT_EQ(status_of(clients[i]->read_answer()), 200) << i;
}

}  // namespace
}  // namespace sluice::http
