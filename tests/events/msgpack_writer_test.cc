// Bytes of MessagePack, written by hand from its specification, and read back by another reader.
#include "events/msgpack_writer.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using namespace std::string_literals;

std::string bytes_of(const auto& write) {
  MsgpackWriter writer;
  write(writer);
  return writer.bytes();
}

std::string unsigned_bytes(uint64_t value) {
  return bytes_of([&](MsgpackWriter& out) { out.unsigned_number(value); });
}

std::string signed_bytes(int64_t value) {
  return bytes_of([&](MsgpackWriter& out) { out.number(value); });
}

TEST(MsgpackWriter, TakesTheShortestFormOfANumber) {
  const std::pair<uint64_t, std::string> unsigned_cases[] = {
      {0, "\x00"s},
      {127, "\x7f"s},
      {128, "\xcc\x80"s},
      {255, "\xcc\xff"s},
      {256, "\xcd\x01\x00"s},
      {65'535, "\xcd\xff\xff"s},
      {65'536, "\xce\x00\x01\x00\x00"s},
      {0xffff'ffff, "\xce\xff\xff\xff\xff"s},
      {0x1'0000'0000, "\xcf\x00\x00\x00\x01\x00\x00\x00\x00"s},
      {0x8123'4567'89ab'cdef, "\xcf\x81\x23\x45\x67\x89\xab\xcd\xef"s},
  };
  for (const auto& [value, bytes] : unsigned_cases) EXPECT_EQ(unsigned_bytes(value), bytes);
  const std::pair<int64_t, std::string> signed_cases[] = {
      {5, "\x05"s},
      {-1, "\xff"s},
      {-32, "\xe0"s},
      {-33, "\xd0\xdf"s},
      {-128, "\xd0\x80"s},
      {-129, "\xd1\xff\x7f"s},
      {-32'769, "\xd2\xff\xff\x7f\xff"s},
      {std::numeric_limits<int64_t>::min(), "\xd3\x80\x00\x00\x00\x00\x00\x00\x00"s},
  };
  for (const auto& [value, bytes] : signed_cases) EXPECT_EQ(signed_bytes(value), bytes) << value;
}

TEST(MsgpackWriter, WritesTextsListsAndMaps) {
  EXPECT_EQ(bytes_of([](MsgpackWriter& out) {
              out.map(2);
              out.text("a"), out.list(3);
              out.nil(), out.real(-1.5), out.unsigned_number(7);
              out.text(""), out.text("bc");
            }),
            "\x82\xa1\x61\x93\xc0\xcb\xbf\xf8\x00\x00\x00\x00\x00\x00\x07\xa0\xa2\x62\x63"s);
  EXPECT_EQ(bytes_of([](MsgpackWriter& out) { out.list(15); }), "\x9f"s);
  EXPECT_EQ(bytes_of([](MsgpackWriter& out) { out.list(16); }), "\xdc\x00\x10"s);
  EXPECT_EQ(bytes_of([](MsgpackWriter& out) { out.list(65'536); }), "\xdd\x00\x01\x00\x00"s);
  EXPECT_EQ(bytes_of([](MsgpackWriter& out) { out.map(15); }), "\x8f"s);
  EXPECT_EQ(bytes_of([](MsgpackWriter& out) { out.map(16); }), "\xde\x00\x10"s);
  EXPECT_EQ(bytes_of([](MsgpackWriter& out) { out.map(65'536); }), "\xdf\x00\x01\x00\x00"s);
  const auto head = [](size_t size) {
    return bytes_of([&](MsgpackWriter& out) { out.text(std::string(size, 'x')); })
        .substr(0, size < 32       ? 1
                   : size < 256    ? 2
                   : size < 65'536 ? 3
                                   : 5);
  };
  EXPECT_EQ(head(31), "\xbf"s);
  EXPECT_EQ(head(32), "\xd9\x20"s);
  EXPECT_EQ(head(255), "\xd9\xff"s);
  EXPECT_EQ(head(256), "\xda\x01\x00"s);
  EXPECT_EQ(head(65'536), "\xdb\x00\x01\x00\x00"s);
}

// At the borders of all forms.
TEST(MsgpackWriter, IsReadByAnotherReader) {
  Json numbers = Json::array();
  MsgpackWriter writer;
  std::vector<int64_t> values;
  for (int shift = 0; shift < 63; ++shift) {
    for (const int64_t offset : {-1, 0, 1}) {
      values.push_back((int64_t{1} << shift) + offset);
      values.push_back(-values.back());
    }
  }
  writer.list(values.size() + 1);
  for (const int64_t value : values) {
    writer.number(value);
    numbers.push_back(value);
  }
  writer.unsigned_number(std::numeric_limits<uint64_t>::max());
  numbers.push_back(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Json::from_msgpack(writer.bytes()), numbers);
}

}  // namespace
}  // namespace sluice
