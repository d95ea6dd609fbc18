// A client of /v1/responses that reads a stream and puts the response together from its events.
//
// It checks what every stream must keep to: numbers without gaps, an event's name in its data,
// items that are added before they grow and done once, texts that are what their deltas were.
// Used by the tests of server/api/responses and of its route. Thread rule: one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "io/json_type.h"

namespace sluice::testing {

class ResponseClient {
 public:
  using Json = nlohmann::ordered_json;

  // Any number of whole events: "event: TYPE", "data: JSON", an empty line.
  void read(std::string_view stream) {
    while (!stream.empty()) {
      const size_t end = stream.find("\n\n");
      const size_t data = stream.find("\ndata: ");
      if (!stream.starts_with("event: ") || end == stream.npos || data > end) {
        ADD_FAILURE() << "not an event: " << stream;
        return;
      }
      const size_t begin = data + 7;
      const Json event = Json::parse(stream.substr(begin, end - begin));
      EXPECT_EQ(event.at("type"), stream.substr(7, data - 7));
      take(event);
      stream.remove_prefix(end + 2);
    }
  }

  void take(const Json& event) {
    EXPECT_EQ(event.at("sequence_number"), types_.size()) << event;
    EXPECT_TRUE(final_.is_null()) << "after the end: " << event;
    const std::string type = event.at("type").get<std::string>();
    EXPECT_EQ(types_.empty(), type == "response.created") << event;
    types_.push_back(type);
    if (event.contains("response")) {
      take_response(type, event);
    } else if (type == "response.output_item.added") {
      EXPECT_EQ(event.at("output_index"), items_.size()) << event;
      EXPECT_EQ(event.at("item").at("status"), "in_progress") << event;
      EXPECT_TRUE(items_.empty() || items_.size() == num_done_) << "two items are open";
      items_.push_back(event.at("item"));
    } else {
      take_part(type, event);
    }
  }

  // The response of the last event; null until then.
  const Json& final_response() const { return final_; }
  const std::vector<std::string>& types() const { return types_; }
  // Of all response.in_progress.
  const std::vector<Json>& shares() const { return shares_; }
  // The items as the events of text made them, each with the status of its end.
  const Json& items() const { return items_; }

 private:
  void take_response(const std::string& type, const Json& event) {
    const Json& response = event.at("response");
    if (first_.is_null()) first_ = response;
    EXPECT_EQ(response.at("id"), first_.at("id"));
    if (type == "response.created" || type == "response.in_progress") {
      EXPECT_EQ(response, first_);
      EXPECT_EQ(response.at("status"), "in_progress");
      if (event.contains("prompt_progress")) shares_.push_back(event["prompt_progress"]);
      return;
    }
    final_ = response;
    EXPECT_EQ(type, "response." + response.at("status").get<std::string>());
    if (response.at("status") == "failed") return;
    EXPECT_EQ(items_.size(), num_done_) << "an item is open";
    EXPECT_EQ(response.at("output"), items_);
  }

  // Grows the last item, as openai's client does; at its end what was grown must be the item.
  void take_part(const std::string& type, const Json& event) {
    ASSERT_EQ(event.at("output_index"), items_.size() - 1) << event;
    Json& item = items_.back();
    if (type == "response.output_item.done") {
      ++num_done_;
      EXPECT_NE(event.at("item").at("status"), "in_progress");
      item["status"] = event.at("item").at("status");
      EXPECT_EQ(event.at("item"), item);
      return;
    }
    EXPECT_EQ(event.at("item_id"), item.at("id"));
    if (type == "response.content_part.added") {
      EXPECT_EQ(event.at("content_index"), item.at("content").size());
      item["content"].push_back(event.at("part"));
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(event.at("part"), item.at("content").at(event.at("content_index").get<size_t>()));
    } else {
      take_text(type, event, item);
    }
  }

  void take_text(const std::string& type, const Json& event, Json& item) {
    const bool is_call = type.starts_with("response.function_call_arguments.");
    Json& text = is_call
                     ? item.at("arguments")
                     : item.at("content").at(event.at("content_index").get<size_t>()).at("text");
    if (type.ends_with(".delta")) {
      EXPECT_NE(event.at("delta"), "");
      text = text.get<std::string>() + event.at("delta").get<std::string>();
    } else {
      EXPECT_TRUE(type.ends_with(".done")) << event;
      EXPECT_EQ(event.at(is_call ? "arguments" : "text"), text);
    }
    if (!is_call && event.contains("logprobs")) take_logprobs(event, item.at("content").at(0));
  }

  // The end has all, also those of tokens after the last delta.
  static void take_logprobs(const Json& event, Json& part) {
    Json all = part.at("logprobs");
    const Json& more = event.at("logprobs");
    if (event.at("type") == "response.output_text.delta") {
      for (const Json& entry : more) all.push_back(entry);
    } else {
      EXPECT_GE(more.size(), all.size());
      for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(more.at(i), all[i]);
      all = more;
    }
    part["logprobs"] = std::move(all);
  }

  std::vector<std::string> types_;
  std::vector<Json> shares_;
  Json items_ = Json::array();
  size_t num_done_ = 0;
  Json first_;
  Json final_;
};

}  // namespace sluice::testing
