// MessagesClient: reads a stream of the messages API as Anthropic's clients do, and puts the same
// document together that a body has.
//
// Used by the tests of that API. It fails the test for events out of their order. Thread rule: one
// thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"

namespace sluice::testing {

class MessagesClient {
 public:
  // Whole events: a line with the name, which the data repeats, and a line with the data.
  void read(std::string_view stream) {
    while (!stream.empty()) {
      const size_t line = stream.find('\n');
      const size_t end = stream.find("\n\n");
      if (end == stream.npos || !stream.starts_with("event: ") ||
          !stream.substr(line + 1).starts_with("data: ")) {
        ADD_FAILURE() << "not an event: " << stream;
        return;
      }
      const std::string name(stream.substr(7, line - 7));
      const auto event = Json::parse(stream.substr(line + 7, end - line - 7));
      EXPECT_EQ(event.at("type"), name);
      read_event(name, event);
      stream.remove_prefix(end + 2);
    }
  }

  bool done() const { return done_; }
  const nlohmann::json& message() const { return message_; }
  const std::vector<nlohmann::json>& pings() const { return pings_; }
  const nlohmann::json& error() const { return error_; }

 private:
  using Json = nlohmann::json;

  void read_event(const std::string& name, const Json& event) {
    EXPECT_FALSE(done_) << "after the end: " << event;
    EXPECT_EQ(message_.is_null(), name == "message_start") << event;
    if (name == "message_start") message_ = event.at("message");
    if (name == "ping") pings_.push_back(event);
    if (name == "error") error_ = event;
    if (name == "message_stop") done_ = true;
    if (name == "content_block_start") start_block(event);
    if (name == "content_block_delta") add_delta(event, event.at("delta"));
    if (name == "content_block_stop") stop_block(event);
    if (name == "message_delta") {
      EXPECT_FALSE(is_open_) << event;
      message_.update(event.at("delta"));
      message_["usage"].update(event.at("usage"));
    }
  }

  void start_block(const Json& event) {
    EXPECT_FALSE(is_open_) << event;
    EXPECT_EQ(event.at("index"), message_.at("content").size());
    message_["content"].push_back(event.at("content_block"));
    is_open_ = true;
    input_.clear();
  }

  void add_delta(const Json& event, const Json& delta) {
    EXPECT_TRUE(is_open_) << event;
    EXPECT_EQ(event.at("index").get<size_t>() + 1, message_.at("content").size());
    Json& block = message_["content"].back();
    const std::string type = delta.at("type");
    if (type == "input_json_delta") {
      EXPECT_EQ(block.at("type"), "tool_use");
      input_ += delta.at("partial_json").get<std::string>();
    } else {
      const std::string member = block.at("type");
      EXPECT_EQ(type, member + "_delta");
      block[member] = block.at(member).get<std::string>() + delta.at(member).get<std::string>();
      EXPECT_NE(delta.at(member), "") << event;
    }
  }

  void stop_block(const Json& event) {
    EXPECT_TRUE(is_open_) << event;
    EXPECT_EQ(event.at("index").get<size_t>() + 1, message_.at("content").size());
    Json& block = message_["content"].back();
    is_open_ = false;
    if (block.at("type") == "tool_use") block["input"] = input_object();
  }

  // Of a call that broke off, the most that can be read as an object.
  Json input_object() const {
    for (size_t size = input_.size(); size > 0; --size) {
      for (const char* end : {"", "}"}) {
        Json input = Json::parse(input_.substr(0, size) + end, nullptr, false);
        if (input.is_object()) return input;
      }
    }
    return Json::object();
  }

  Json message_;
  Json error_;
  std::vector<Json> pings_;
  std::string input_;
  bool is_open_ = false;
  bool done_ = false;
};

}  // namespace sluice::testing
