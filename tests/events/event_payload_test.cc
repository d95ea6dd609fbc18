// The bytes of events against bytes written by hand, and against what vLLM 0.26 sends, as a reader
// of MessagePack shows it.
#include "events/event_payload.h"

#include <gtest/gtest.h>

#include "io/json_type.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using namespace std::string_literals;

Json decoded(const std::vector<CacheEvent>& events) {
  return Json::from_msgpack(encode_events({.time_s = 2.5, .events = events}));
}

TEST(EventPayload, HasTheseBytes) {
  EXPECT_EQ(encode_events({.time_s = 1.5, .events = {AllBlocksCleared{}}}),
            "\x93"                                  // a list of 3
            "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"  // 1.5
            "\x91\x81\xa4type\xb0"                  // a list of 1, a map of 1
            "AllBlocksCleared"
            "\x00"s);  // the rank
  EXPECT_EQ(encode_events({.time_s = 0,
                           .events = {BlocksRemoved{.hashes = {0x0102'0304'0506'0708, 9},
                                                    .medium = KvMedium::kCpu}}}),
            "\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x91\x84\xa4type\xac"
            "BlockRemoved"
            "\xac"
            "block_hashes"
            "\x92\xcf\x01\x02\x03\x04\x05\x06\x07\x08\x09"
            "\xa6medium\xa3"
            "CPU"
            "\xa9group_idx\x00\x00"s);
  EXPECT_EQ(
      encode_events({.time_s = 0,
                     .events = {BlocksStored{
                         .hashes = {200}, .parent = 1, .token_ids = {5, 300}, .block_tokens = 2}}}),
      "\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x91\x8b\xa4type\xab"
      "BlockStored"
      "\xac"
      "block_hashes"
      "\x91\xcc\xc8\xb1"
      "parent_block_hash"
      "\x01\xa9token_ids\x92\x05\xcd\x01\x2c\xaa"
      "block_size"
      "\x02\xa7lora_id\xc0\xa6medium\xa3GPU\xa9lora_name\xc0\xaa"
      "extra_keys"
      "\x91\xc0\xa9group_idx\x00\xb2kv_cache_spec_kind\xae"
      "full_attention"
      "\x00"s);
}

// As an event of vLLM 0.26 is shown in volcano-sh/kthena#1535.
TEST(EventPayload, HasTheFieldsThatVllmSends) {
  const Json expected = {2.5,
                         {{{"type", "BlockStored"},
                           {"block_hashes", {15760518052499183552U}},
                           {"parent_block_hash", nullptr},
                           {"token_ids", {151644, 872, 198, 9064}},
                           {"block_size", 4},
                           {"lora_id", nullptr},
                           {"medium", "GPU"},
                           {"lora_name", nullptr},
                           {"extra_keys", Json::array({nullptr})},
                           {"group_idx", 0},
                           {"kv_cache_spec_kind", "full_attention"}}},
                         0};
  EXPECT_EQ(decoded({BlocksStored{.hashes = {15760518052499183552U},
                                  .token_ids = {151644, 872, 198, 9064},
                                  .block_tokens = 4}}),
            expected);
}

TEST(EventPayload, HasTheSaltOfTheFirstBlock) {
  const Json event = decoded({BlocksStored{.hashes = {1, 2, 3},
                                           .token_ids = {4, 5, 6},
                                           .block_tokens = 1,
                                           .medium = KvMedium::kCpu,
                                           .salt = "mine"}})
                         .at(1)
                         .at(0);
  EXPECT_EQ(event.at("extra_keys"), (Json{Json{"mine"}, nullptr, nullptr}));
  EXPECT_EQ(event.at("medium"), "CPU");
}

TEST(EventPayload, KeepsTheOrderOfEvents) {
  const Json batch = decoded({BlocksRemoved{.hashes = {1}}, AllBlocksCleared{},
                              BlocksStored{.hashes = {1}, .token_ids = {7}, .block_tokens = 1}});
  ASSERT_EQ(batch.at(1).size(), 3U);
  EXPECT_EQ(batch.at(1).at(0).at("type"), "BlockRemoved");
  EXPECT_EQ(batch.at(1).at(1), (Json{{"type", "AllBlocksCleared"}}));
  EXPECT_EQ(batch.at(1).at(2).at("type"), "BlockStored");
}

}  // namespace
}  // namespace sluice
