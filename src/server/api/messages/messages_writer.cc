#include "server/api/messages/messages_writer.h"

#include <utility>

#include "core/error.h"
#include "server/api/answer/answer_body.h"
#include "server/api/messages/messages_fault.h"
#include "server/http/sse.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerEvent::Kind;

Json thinking_block() { return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}; }
Json text_block() { return {{"type", "text"}, {"text", ""}}; }

Json call_block(const AnswerOptions& options, size_t call, const AnswerEvent& event) {
  Json block;
  block["type"] = "tool_use";
  block["id"] = "toolu_" + call_digits(options.call_seed, 0, call);
  block["name"] = event.text;
  block["input"] = Json::object();
  return block;
}

// The text block or thinking block at the end, or a new one.
Json& last_block(Json& blocks, Json empty) {
  if (blocks.empty() || blocks.back()["type"] != empty["type"]) blocks.push_back(std::move(empty));
  return blocks.back();
}

Json content_of(const AnswerOptions& options, const std::vector<AnswerEvent>& events) {
  Json blocks = Json::array();
  size_t num_calls = 0;
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case Kind::kThought:
        last_block(blocks, thinking_block())["thinking"].get_ref<std::string&>() += event.text;
        break;
      case Kind::kContent:
        last_block(blocks, text_block())["text"].get_ref<std::string&>() += event.text;
        break;
      case Kind::kCall:
        blocks.push_back(call_block(options, num_calls++, event));
        break;
      case Kind::kArguments:
        blocks.back()["input"] = Json::parse(event.text);
        break;
      case Kind::kCallEnd:
        break;
    }
  }
  return blocks;
}

// A limit of time has no reason of its own.
std::string stop_reason_of(const AnswerChoice& choice, FinishReason reason) {
  if (choice.finish_reason() == "tool_calls") return "tool_use";
  if (reason != FinishReason::kStop) return "max_tokens";
  return choice.stop_reason().is_string() ? "stop_sequence" : "end_turn";
}

Json stop_sequence_of(const AnswerChoice& choice, std::string_view stop_reason) {
  return stop_reason == "stop_sequence" ? choice.stop_reason() : Json();
}

// Tokens of the prompt are in one of the first three, whose sum it is.
Json usage_json(const AnswerOptions& options, const TokenCounts& counts) {
  Json usage;
  usage["input_tokens"] = counts.prompt - counts.cached;
  usage["cache_creation_input_tokens"] = 0;
  usage["cache_read_input_tokens"] = counts.cached;
  usage["output_tokens"] = counts.generated;
  usage["output_tokens_details"]["thinking_tokens"] = counts.thought;
  add_clamp(options, usage);
  return usage;
}

Json message_json(const AnswerOptions& options, Json content, Json stop_reason, Json stop_sequence,
                  const TokenCounts& counts) {
  Json message;
  message["id"] = "msg_" + options.request_id;
  message["type"] = "message";
  message["role"] = "assistant";
  message["model"] = options.model;
  message["content"] = std::move(content);
  message["stop_reason"] = std::move(stop_reason);
  message["stop_sequence"] = std::move(stop_sequence);
  message["usage"] = usage_json(options, counts);
  return message;
}

// An event whose data begins with its own name.
Json event_of(std::string_view type) { return {{"type", type}}; }

void write(const Json& event, std::string& out) {
  http::append_sse_event(out, event["type"].get_ref<const std::string&>(), json_line(event));
}

}  // namespace

MessagesWriter::MessagesWriter(std::shared_ptr<const AnswerOptions> options,
                               const Tokenizer& tokenizer)
    : options_(std::move(options)),
      tokenizer_(&tokenizer),
      choice_(*options_, tokenizer, 0),
      usage_(*options_) {
  SLUICE_CHECK(options_->num_choices() == 1 && options_->route == AnswerRoute::kChat);
}

std::string MessagesWriter::body(const std::vector<AnswerDelta>& choices,
                                 const std::optional<CachedPlaces>& /*places*/) const {
  const AnswerDelta& delta = choices.at(0);
  AnswerChoice choice(*options_, *tokenizer_, 0);
  UsageCounter usage(*options_);
  Json content = content_of(*options_, choice.take(delta).events);
  usage.add(delta, choice.num_thought_tokens());
  const std::string stop_reason = stop_reason_of(choice, delta.output.finish_reason);
  return json_line(message_json(*options_, std::move(content), stop_reason,
                                stop_sequence_of(choice, stop_reason), usage.counts()));
}

// The first ping has no progress: what the cache has of the prompt is not known yet.
void MessagesWriter::write_start(std::string& out) {
  Json start = event_of("message_start");
  start["message"] = message_json(*options_, Json::array(), nullptr, nullptr, usage_.counts());
  write(start, out);
  write_ping(out);
}

void MessagesWriter::write_share(size_t /*prompt*/, const PromptShare& share, std::string& out) {
  Json ping = event_of("ping");
  Json& progress = ping["prompt_progress"];
  progress["total"] = share.total;
  progress["cache"] = share.cache;
  progress["processed"] = share.processed;
  progress["time_ms"] = share.time_ms;
  write(ping, out);
}

void MessagesWriter::write_delta(const AnswerDelta& delta, std::string& out) {
  const ChoicePart part = choice_.take(delta);
  usage_.add(delta, choice_.num_thought_tokens());
  for (const AnswerEvent& event : part.events) write_event(event, out);
  if (!choice_.finished()) return;
  close_block(out);
  stop_reason_ = stop_reason_of(choice_, delta.output.finish_reason);
}

void MessagesWriter::write_event(const AnswerEvent& event, std::string& out) {
  switch (event.kind) {
    case Kind::kThought:
      if (open_ != Open::kThinking) open_block(Open::kThinking, thinking_block(), out);
      return write_block_delta("thinking_delta", "thinking", event.text, out);
    case Kind::kContent:
      if (open_ != Open::kText) open_block(Open::kText, text_block(), out);
      return write_block_delta("text_delta", "text", event.text, out);
    case Kind::kCall:
      return open_block(Open::kInput, call_block(*options_, num_calls_++, event), out);
    case Kind::kArguments:
      return write_block_delta("input_json_delta", "partial_json", event.text, out);
    case Kind::kCallEnd:
      return close_block(out);
  }
}

void MessagesWriter::open_block(Open kind, Json block, std::string& out) {
  close_block(out);
  open_ = kind;
  Json start = event_of("content_block_start");
  start["index"] = num_blocks_++;
  start["content_block"] = std::move(block);
  write(start, out);
}

void MessagesWriter::close_block(std::string& out) {
  if (std::exchange(open_, Open::kNone) == Open::kNone) return;
  Json stop = event_of("content_block_stop");
  stop["index"] = num_blocks_ - 1;
  write(stop, out);
}

void MessagesWriter::write_block_delta(std::string_view type, const char* member,
                                       const std::string& text, std::string& out) const {
  Json delta = event_of("content_block_delta");
  delta["index"] = num_blocks_ - 1;
  delta["delta"]["type"] = type;
  delta["delta"][member] = text;
  write(delta, out);
}

void MessagesWriter::write_end(const std::optional<CachedPlaces>& /*places*/, std::string& out) {
  Json end = event_of("message_delta");
  end["delta"]["stop_reason"] = stop_reason_;
  end["delta"]["stop_sequence"] = stop_sequence_of(choice_, stop_reason_);
  end["usage"] = usage_json(*options_, usage_.counts());
  write(end, out);
  write(event_of("message_stop"), out);
}

void MessagesWriter::write_fault(const http::Fault& fault, std::string& out) {
  http::append_sse_event(out, "error", message_fault_body(fault, options_->request_id));
}

void MessagesWriter::write_ping(std::string& out) { write(event_of("ping"), out); }

std::optional<http::Fault> MessagesWriter::abort_fault() const {
  return http::Fault{.status = 503,
                     .message = "the server is shutting down; the answer was not finished",
                     .fields = {{"Retry-After", "30"}}};
}

}  // namespace sluice::api
