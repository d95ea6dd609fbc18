#include "server/api/answer/stream_chunks.h"

#include <utility>

#include "server/api/answer/answer_body.h"
#include "server/http/sse.h"

namespace sluice::api {
namespace {

using Kind = AnswerEvent::Kind;

bool has_entries(const nlohmann::ordered_json& logprobs) {
  return !logprobs.is_null() && !logprobs.front().empty();
}

}  // namespace

ChunkWriter::ChunkWriter(std::shared_ptr<const AnswerOptions> options, const Tokenizer& tokenizer)
    : options_(std::move(options)),
      tokenizer_(&tokenizer),
      head_(answer_head(*options_, is_chat() ? "chat.completion.chunk" : "text_completion")),
      waiting_(options_->num_choices()),
      usage_(*options_) {
  choices_.reserve(waiting_.size());
  for (size_t i = 0; i < waiting_.size(); ++i) choices_.emplace_back(*options_, tokenizer, i);
}

std::string ChunkWriter::body(const std::vector<AnswerDelta>& choices,
                              const std::optional<CachedPlaces>& places) const {
  return openai_body(*options_, *tokenizer_, choices, places);
}

ChunkWriter::Json ChunkWriter::bare_choice(size_t index) const {
  Json choice;
  choice["index"] = index;
  if (is_chat()) {
    choice["delta"] = Json::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  // Clients add up what each chunk has.
  if (options_->return_token_ids) choice["token_ids"] = Json::array();
  return choice;
}

void ChunkWriter::write_start(std::string& out) {
  const bool has_ids = options_->return_token_ids;
  for (size_t i = 0; i < choices_.size(); ++i) {
    // Completions have no role: one empty chunk shows that the request is there.
    if (!is_chat() && !has_ids && i > 0) break;
    Json choice = bare_choice(i);
    if (is_chat()) choice["delta"] = {{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}};
    Json extra = Json::object();
    if (has_ids && (!is_chat() || i == 0)) {
      (is_chat() ? extra : choice)["prompt_token_ids"] = options_->prompt_of(i).ids;
    }
    write_chunk(std::move(choice), std::move(extra), out);
  }
}

void ChunkWriter::write_share(size_t prompt, const PromptShare& share, std::string& out) {
  Json choice = bare_choice(prompt * options_->n);
  if (is_chat()) choice["delta"] = {{"role", "assistant"}, {"content", nullptr}};
  Json extra;
  Json& progress = extra["prompt_progress"];
  progress["total"] = share.total;
  progress["cache"] = share.cache;
  progress["processed"] = share.processed;
  progress["time_ms"] = share.time_ms;
  write_chunk(std::move(choice), std::move(extra), out);
}

void ChunkWriter::write_delta(const AnswerDelta& delta, std::string& out) {
  const size_t index = delta.choice;
  AnswerChoice& choice = choices_[index];
  ChoicePart& part = waiting_[index].part;
  part.append(choice.take(delta));
  usage_.add(delta, choice.num_thought_tokens());
  for (const AnswerEvent& event : std::exchange(part.events, {})) {
    Json json = bare_choice(index);
    if (is_chat()) {
      json["delta"] = delta_of(index, event);
      if (json["delta"].is_null()) continue;
    } else {
      json["text"] = event.text;
    }
    write_choice(index, std::move(json), out);
  }
  if (!choice.finished()) return;
  Json json = bare_choice(index);
  json["finish_reason"] = choice.finish_reason();
  json["stop_reason"] = choice.stop_reason();
  write_choice(index, std::move(json), out);
}

ChunkWriter::Json ChunkWriter::delta_of(size_t index, const AnswerEvent& event) {
  size_t& num_calls = waiting_[index].num_calls;
  Json delta;
  if (event.kind == Kind::kThought) add_thought(options_->reasoning_field, event.text, delta);
  if (event.kind == Kind::kContent) delta["content"] = event.text;
  if (event.kind == Kind::kCall) {
    delta["tool_calls"] = Json::array({call_json(*options_, index, num_calls++, event)});
  }
  if (event.kind == Kind::kArguments) {
    Json call;
    call["index"] = num_calls - 1;
    call["function"]["arguments"] = event.text;
    delta["tool_calls"] = Json::array({std::move(call)});
  }
  return delta;
}

void ChunkWriter::write_choice(size_t index, Json choice, std::string& out) {
  ChoicePart part = std::exchange(waiting_[index].part, {});
  if (has_entries(part.logprobs)) choice["logprobs"] = std::move(part.logprobs);
  if (!part.token_ids.empty()) choice["token_ids"] = std::move(part.token_ids);
  Json extra = Json::object();
  // A chat has one prompt, whatever n is.
  if (!part.prompt_logprobs.is_null() && (!is_chat() || index == 0)) {
    (is_chat() ? extra : choice)["prompt_logprobs"] = std::move(part.prompt_logprobs);
  }
  // Where tokens were found is only told at the end.
  if (options_->timings_per_token) extra["timings"] = usage_.timings(std::nullopt);
  write_chunk(std::move(choice), std::move(extra), out);
}

void ChunkWriter::write_chunk(Json choice, Json extra, std::string& out) const {
  Json chunk = head_;
  chunk["choices"] = Json::array({std::move(choice)});
  chunk.update(extra);
  if (options_->include_usage) {
    chunk["usage"] = options_->continuous_usage ? usage_.usage() : Json();
  }
  http::append_sse_event(out, {}, json_line(chunk));
}

void ChunkWriter::write_end(const std::optional<CachedPlaces>& places, std::string& out) {
  if (options_->include_usage) {
    Json chunk = head_;
    chunk["choices"] = Json::array();
    chunk["usage"] = usage_.usage();
    chunk["timings"] = usage_.timings(places);
    http::append_sse_event(out, {}, json_line(chunk));
  }
  http::append_sse_event(out, {}, "[DONE]");
}

void ChunkWriter::write_fault(const http::Fault& fault, std::string& out) {
  http::append_sse_event(out, {}, http::fault_body(fault));
  http::append_sse_event(out, {}, "[DONE]");
}

void ChunkWriter::write_ping(std::string& out) { http::append_sse_comment(out, "ping"); }

}  // namespace sluice::api
