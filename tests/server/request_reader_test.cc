// Framing and time of requests, without sockets: one table for all rules of heads.
#include "server/http/request_reader.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace sluice::http {
namespace {

using Step = RequestReader::Step;
using namespace std::chrono_literals;

constexpr TimePoint kStart{};

// Feeds `wire` in pieces; the step after the last byte that was used.
Step read(RequestReader& reader, std::string_view wire, size_t piece) {
  Step step = Step::kMore;
  std::string in;
  for (size_t at = 0; at < wire.size(); at += piece) {
    in += wire.substr(at, piece);
    do {
      step = reader.feed(in, kStart);
    } while (step == Step::kHead);
    if (step != Step::kMore) return step;
  }
  return step;
}

std::string head(const std::string& fields, const std::string& line = "POST /v1/x HTTP/1.1") {
  return line + "\r\nHost: a\r\n" + fields + "\r\n";
}

struct BadHead {
  std::string_view name;
  std::string wire;
  int status;
};

void expect_faults(std::initializer_list<BadHead> table) {
  const Limits limits;
  for (const BadHead& bad : table) {
    for (const size_t piece : {size_t{1}, bad.wire.size()}) {
      RequestReader reader(limits, kStart);
      EXPECT_EQ(read(reader, bad.wire, piece), Step::kFault) << bad.name << ", pieces of " << piece;
      EXPECT_EQ(reader.fault().status, bad.status) << bad.name << ": " << reader.fault().message;
      EXPECT_TRUE(reader.fault().close) << bad.name;
    }
  }
}

TEST(RequestReader, RefusesAmbiguousFraming) {
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const std::string length = "Content-Length: 1\r\n";
  expect_faults({
      {"both", head(chunked + length), 400},
      {"both, other order", head(length + chunked), 400},
      {"chunked twice", head(chunked + chunked), 400},
      {"chunked, chunked", head("Transfer-Encoding: chunked, chunked\r\n"), 400},
      {"gzip, chunked", head("Transfer-Encoding: gzip, chunked\r\n"), 400},
      {"identity", head("Transfer-Encoding: identity\r\n"), 400},
      {"quoted", head("Transfer-Encoding: \"chunked\"\r\n"), 400},
      {"other coding", head("Transfer-Encoding: CHUNKE\r\n"), 400},
      {"vertical tab", head("Transfer-Encoding: \vchunked\r\n"), 400},
      {"empty", head("Transfer-Encoding:\r\n"), 400},
      {"space in the name", head("Transfer-Encoding : chunked\r\n"), 400},
      {"with 1.0", head(chunked, "POST / HTTP/1.0"), 400},
      {"two lengths", head(length + "Content-Length: 2\r\n"), 400},
      {"two equal lengths", head(length + length), 400},
      {"list of lengths", head("Content-Length: 1, 1\r\n"), 400},
      {"plus", head("Content-Length: +1\r\n"), 400},
      {"minus", head("Content-Length: -1\r\n"), 400},
      {"hexadecimal", head("Content-Length: 0x1\r\n"), 400},
      {"empty length", head("Content-Length: \r\n"), 400},
      {"beyond 64 bits", head("Content-Length: 18446744073709551617\r\n"), 400},
      {"too large", head("Content-Length: 9000000\r\n"), 413},
      {"no length", head(""), 411},
  });
}

TEST(RequestReader, RefusesMalformedHeads) {
  const std::string get = "GET / HTTP/1.1";
  expect_faults({
      {"LF alone", "GET / HTTP/1.1\nHost: a\n\n", 400},
      {"LF alone in a field", head("A: b\nC: d\r\n", get), 400},
      {"CR alone", head("A: b\rC: d\r\n", get), 400},
      {"continued field", head("A: b\r\n c\r\n", get), 400},
      {"continued by a tab", head("A: b\r\n\tc\r\n", get), 400},
      {"NUL", head(std::string("A: b\0\r\n", 7), get), 400},
      {"field without colon", head("abc\r\n", get), 400},
      {"space before the name", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {"empty line first", "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"no Host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two Hosts", head("Host: b\r\n", get), 400},
      {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"TLS hello", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400},
      {"HTTP/1.2", head("", "GET / HTTP/1.2"), 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"absolute target", head("", "GET http://a/ HTTP/1.1"), 400},
      {"space in the target", head("", "GET /a b HTTP/1.1"), 400},
      {"encoded body", head("Content-Length: 1\r\nContent-Encoding: gzip\r\n"), 415},
      {"Expect", head("Content-Length: 1\r\nExpect: 200-ok\r\n"), 417},
  });
}

TEST(RequestReader, RefusesWhatIsTooLong) {
  std::string fields;
  for (int i = 0; i < 100; ++i) fields += "A: b\r\n";
  const auto target = [](size_t size) { return "GET /" + std::string(size, 'a') + " HTTP/1.1"; };
  expect_faults({
      {"101 fields", head(fields, "GET / HTTP/1.1"), 431},
      {"20 kB field", head("A: " + std::string(20'000, 'a'), "GET / HTTP/1.1"), 431},
      {"target of 8 KiB and 1", head("", target(8192)), 414},
      {"target of 100 kB", head("", target(100'000)), 414},
  });
  const Limits limits;
  RequestReader reader(limits, kStart);
  EXPECT_EQ(read(reader, head("", target(8191)), 1000), Step::kComplete);
}

TEST(RequestReader, ReadsPipelinedRequests) {
  const Limits limits;
  RequestReader reader(limits, kStart);
  std::string in = head("Content-Length: 3\r\nX-Request-Id: r.1\r\n", "POST /a?b=c HTTP/1.1") +
                   "abc" + head("Transfer-Encoding: chunked\r\n") + "1\r\nx\r\n0\r\n\r\n" +
                   head("X-Request-Id: a b\r\n", "GET /z HTTP/1.0");
  EXPECT_EQ(reader.feed(in, kStart), Step::kHead);
  EXPECT_EQ(reader.feed(in, kStart), Step::kComplete);
  EXPECT_EQ(reader.head().request.body, "abc");
  EXPECT_EQ(reader.head().request.path, "/a");
  EXPECT_EQ(reader.head().request.query, "b=c");
  EXPECT_EQ(reader.head().request.id, "r.1");
  EXPECT_TRUE(reader.head().keep_alive);
  reader.next(kStart);
  EXPECT_EQ(reader.feed(in, kStart), Step::kHead);
  EXPECT_EQ(reader.feed(in, kStart), Step::kComplete);
  EXPECT_EQ(reader.head().request.body, "x");
  reader.next(kStart);
  EXPECT_EQ(reader.feed(in, kStart), Step::kHead);
  EXPECT_EQ(reader.feed(in, kStart), Step::kComplete);
  EXPECT_TRUE(in.empty());
  EXPECT_EQ(reader.head().request.id.size(), 32u) << "an invalid id is replaced";
  EXPECT_FALSE(reader.head().keep_alive);
}

TEST(RequestReader, HeadsHaveATotalTime) {
  const Limits limits;
  RequestReader reader(limits, kStart);
  EXPECT_EQ(reader.deadline(), kStart + 75s);
  EXPECT_FALSE(reader.expire()) << "an idle connection gets no answer";
  std::string in = "G";
  reader.feed(in, kStart + 20s);
  in += "E";
  reader.feed(in, kStart + 29s);
  EXPECT_EQ(reader.deadline(), kStart + 30s) << "more bytes do not give more time";
  EXPECT_EQ(reader.expire()->status, 408);
}

TEST(RequestReader, BodiesNeedBytesAndARate) {
  const Limits limits;
  RequestReader reader(limits, kStart);
  std::string in = head("Content-Length: 8000000\r\n");
  reader.feed(in, kStart);
  EXPECT_EQ(reader.deadline(), kStart + 10s) << "nothing after the grace is below every rate";
  in.assign(limits.body_bytes_per_second * 20, 'x');
  reader.feed(in, kStart + 1s);
  EXPECT_EQ(reader.deadline(), kStart + 20s);
  in.assign(limits.body_bytes_per_second * 40, 'x');
  reader.feed(in, kStart + 2s);
  EXPECT_EQ(reader.deadline(), kStart + 32s) << "silence ends before the mean rate does";
  EXPECT_EQ(reader.expire()->status, 408);
}

TEST(RequestReader, WaitsForContinueOnlyWithABody) {
  const Limits limits;
  RequestReader reader(limits, kStart);
  std::string in = head("Content-Length: 1\r\nExpect: 100-Continue\r\n");
  reader.feed(in, kStart);
  EXPECT_TRUE(reader.head().expects_continue);
  RequestReader empty(limits, kStart);
  in = head("Content-Length: 0\r\nExpect: 100-continue\r\n");
  empty.feed(in, kStart);
  EXPECT_FALSE(empty.head().expects_continue);
}

}  // namespace
}  // namespace sluice::http
