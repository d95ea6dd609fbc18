#include "server/metrics/request_log.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "core/printable.h"
#include "io/json_type.h"

namespace sluice::metrics {
namespace {

// The last field of a line, which may have spaces.
std::string quoted_error(std::string_view text) {
  constexpr size_t kMaxChars = 400;
  std::string word = printable(text, kMaxChars);
  std::replace(word.begin(), word.end(), '"', '\'');
  return '"' + word + '"';
}

// All of it, as a string of JSON in ASCII: one word to every reader of lines.
std::string quoted_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string request_log_text(const RequestLogEntry& entry) {
  std::string line = fmt::format("{} {} {} {}", log_time_text(entry.time), log_word(entry.id),
                                 log_word(entry.route), entry.status);
  const auto out = std::back_inserter(line);
  if (!entry.path.empty()) {
    fmt::format_to(out, " method={} path={}", log_word(entry.method), log_word(entry.path));
  }
  const auto phase = [&](std::string_view name, std::optional<double> seconds) {
    if (seconds) fmt::format_to(out, " {}={:.3f}s", name, *seconds);
  };
  if (const auto& summary = entry.summary) {
    fmt::format_to(out, " prompt={} cached={} generated={}", summary->num_prompt_tokens,
                   summary->num_cached_tokens, summary->num_generated_tokens);
    phase("queue", summary->queue_s);
    phase("prefill", summary->prefill_s);
    phase("decode", summary->decode_s);
  }
  phase("total", entry.total_s);
  if (entry.summary && entry.summary->outcome) {
    fmt::format_to(out, " end={}", outcome_name(*entry.summary->outcome));
  }
  if (entry.aborted) fmt::format_to(out, " aborted={}", abort_reason_name(*entry.aborted));
  if (!entry.skipped_tools.empty()) {
    fmt::format_to(out, " skipped_tools={}", log_word(entry.skipped_tools));
  }
  if (!entry.ignored_fields.empty()) {
    fmt::format_to(out, " ignored_fields={}", log_word(entry.ignored_fields));
  }
  if (!entry.error.empty()) fmt::format_to(out, " error={}", quoted_error(entry.error));
  if (entry.text) {
    fmt::format_to(out, " request={}", quoted_text(entry.text->request));
    for (const std::string& answer : entry.text->answers) {
      fmt::format_to(out, " answer={}", quoted_text(answer));
    }
  }
  return line;
}

std::string request_log_json(const RequestLogEntry& entry) {
  nlohmann::ordered_json object = log_object(entry.time, "request");
  const auto phase = [&](const char* name, std::optional<double> seconds) {
    if (seconds) object[name] = log_seconds(*seconds);
  };
  object["id"] = entry.id;
  object["route"] = entry.route;
  if (!entry.path.empty()) {
    object["method"] = log_word(entry.method);
    object["path"] = log_word(entry.path);
  }
  object["status"] = entry.status;
  if (const auto& summary = entry.summary) {
    object["prompt_tokens"] = summary->num_prompt_tokens;
    object["cached_tokens"] = summary->num_cached_tokens;
    object["generated_tokens"] = summary->num_generated_tokens;
    phase("queue_s", summary->queue_s);
    phase("prefill_s", summary->prefill_s);
    phase("decode_s", summary->decode_s);
  }
  phase("total_s", entry.total_s);
  if (entry.summary && entry.summary->outcome) {
    object["end"] = outcome_name(*entry.summary->outcome);
  }
  if (entry.aborted) object["aborted"] = abort_reason_name(*entry.aborted);
  if (!entry.skipped_tools.empty()) object["skipped_tools"] = entry.skipped_tools;
  if (!entry.ignored_fields.empty()) object["ignored_fields"] = entry.ignored_fields;
  if (!entry.error.empty()) object["error"] = entry.error;
  if (entry.text) {
    object["request"] = entry.text->request;
    object["answers"] = entry.text->answers;
  }
  return log_json_line(object);
}

}  // namespace sluice::metrics
