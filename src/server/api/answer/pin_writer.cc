// Shares of the prompt as in chats, then the pin itself.
#include "server/api/answer/pin_writer.h"

#include "server/http/sse.h"

namespace sluice::api {
namespace {

using Json = nlohmann::ordered_json;

// A pin that another caller has deleted at once, or a request that was cancelled, as by the limit
// of time.
http::Fault not_made() {
  return {.status = 503, .message = "the pin was not made, or was deleted meanwhile; try again"};
}

bool is_cancelled(const AnswerDelta& delta) {
  return delta.output.finish_reason == FinishReason::kCancelled;
}

}  // namespace

// The same form in the stream, in the list and alone.
Json pin_json(const PinInfo& pin) {
  return {{"name", pin.name},
          {"num_tokens", pin.num_tokens},
          {"num_blocks", pin.num_blocks},
          {"bytes", pin.num_bytes},
          {"places",
           {{"device", pin.num_device_tokens},
            {"host", pin.num_host_tokens},
            {"disk", pin.num_disk_tokens}}}};
}

std::string PinWriter::body(const std::vector<AnswerDelta>& choices,
                            const std::optional<CachedPlaces>&) const {
  const auto pin = is_cancelled(choices.at(0)) ? std::nullopt : find_();
  return pin ? pin_json(*pin).dump() : http::fault_body(not_made());
}

// So that a client sees at once that its request is there.
void PinWriter::write_start(std::string& out) {
  write_share(0, {.total = num_prompt_tokens_}, out);
}

// There is one prompt.
void PinWriter::write_share(size_t, const PromptShare& share, std::string& out) {
  const Json progress = {{"total", share.total},
                         {"cache", share.cache},
                         {"processed", share.processed},
                         {"time_ms", share.time_ms}};
  http::append_sse_event(out, {}, Json{{"prompt_progress", progress}}.dump());
}

void PinWriter::write_delta(const AnswerDelta& delta, std::string&) {
  is_cancelled_ |= is_cancelled(delta);
}

// The service lists a pin before its request ends. `cache`: where what was not computed came from,
// as in the timings of answers.
void PinWriter::write_end(const std::optional<CachedPlaces>& places, std::string& out) {
  const auto pin = is_cancelled_ ? std::nullopt : find_();
  if (!pin) return write_fault(not_made(), out);
  Json json = pin_json(*pin);
  if (places) {
    json["cache"] = {{"device", places->device}, {"host", places->host}, {"disk", places->disk}};
  }
  http::append_sse_event(out, {}, json.dump());
  http::append_sse_event(out, {}, "[DONE]");
}

// Streams of all APIs of OpenAI's kind end in this way.
void PinWriter::write_fault(const http::Fault& fault, std::string& out) {
  http::append_sse_event(out, {}, http::fault_body(fault));
  http::append_sse_event(out, {}, "[DONE]");
}

void PinWriter::write_ping(std::string& out) { http::append_sse_comment(out, "ping"); }

std::optional<http::Fault> PinWriter::abort_fault() const {
  return http::Fault{.status = 503, .message = "the server ended before the pin was made"};
}

}  // namespace sluice::api
