// Chunked bodies: every cut into pieces gives the same payload, and wrong framing is a fault.
#include "server/http/chunk_decoder.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace sluice::http {
namespace {

struct Decoded {
  std::string body;
  size_t used = 0;
  int status = 0;  // of the fault
  bool done = false;
};

Decoded decode(std::string_view bytes, size_t piece, const Limits& limits = {}) {
  ChunkDecoder decoder(limits);
  Decoded decoded;
  while (decoded.used < bytes.size() && !decoder.done() && !decoder.fault()) {
    decoded.used += decoder.feed(bytes.substr(decoded.used, piece), decoded.body);
  }
  decoded.done = decoder.done();
  if (decoder.fault()) decoded.status = decoder.fault()->status;
  return decoded;
}

TEST(ChunkDecoder, EveryPieceSizeGivesTheSamePayloadAndLeavesWhatFollows) {
  const std::string wire = "4;name=\"v\"\r\nWiki\r\n00A\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n";
  const std::string text = wire + "GET / HTTP/1.1\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const Decoded decoded = decode(text, piece);
    EXPECT_TRUE(decoded.done) << piece;
    EXPECT_EQ(decoded.body, "Wiki0123456789") << piece;
    EXPECT_EQ(decoded.used, wire.size()) << piece;
  }
}

struct BadBody {
  std::string_view name;
  std::string wire;
  int status;
};

TEST(ChunkDecoder, WrongFramingIsAFault) {
  const BadBody bodies[] = {
      {"no digits", "\r\n", 400},
      {"sign", "+4\r\nWiki\r\n", 400},
      {"prefix", "0x4\r\nWiki\r\n", 400},
      {"space before", " 4\r\nWiki\r\n", 400},
      {"space behind", "4 \r\nWiki\r\n", 400},
      {"LF alone after the size", "4\nWiki\r\n", 400},
      {"LF alone in the extension", "4;a\nWiki\r\n", 400},
      {"CR alone in the extension", "4;a\rb\r\nWiki\r\n", 400},
      {"NUL in the extension", std::string("4;a\0\r\n", 6), 400},
      {"data too long", "4\r\nWikix\r\n", 400},
      {"LF alone after the data", "4\r\nWiki\n", 400},
      {"many digits", "0000000000000\r\n", 400},
      {"huge size", "ffffffffffff\r\n", 413},
      {"long extension", "4;" + std::string(2000, 'a'), 400},
      {"trailer without colon", "0\r\nabc\r\n\r\n", 400},
      {"trailer continued", "0\r\nA: b\r\n c\r\n\r\n", 400},
      {"trailer with LF alone", "0\r\nA: b\n\r\n", 400},
      {"trailer with CR alone", "0\r\nA: b\rc\r\n\r\n", 400},
      {"trailers of 20 kB", "0\r\nA: " + std::string(20'000, 'a'), 431},
  };
  for (const BadBody& body : bodies) {
    for (const size_t piece : {size_t{1}, body.wire.size()}) {
      const Decoded decoded = decode(body.wire, piece);
      EXPECT_EQ(decoded.status, body.status) << body.name << ", pieces of " << piece;
      EXPECT_FALSE(decoded.done) << body.name;
    }
  }
}

TEST(ChunkDecoder, TheLimitCountsWhatIsOnTheWire) {
  std::string wire;
  for (int i = 0; i < 100; ++i) wire += "1\r\nx\r\n";
  wire += "0\r\n\r\n";
  Limits limits;
  limits.body_bytes = wire.size();
  EXPECT_TRUE(decode(wire, 7, limits).done);
  EXPECT_EQ(decode(wire, 7, limits).body, std::string(100, 'x'));
  limits.body_bytes = wire.size() - 1;
  EXPECT_EQ(decode(wire, 7, limits).status, 413);
}

}  // namespace
}  // namespace sluice::http
