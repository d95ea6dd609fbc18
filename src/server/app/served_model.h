// ServedModel: a loaded model with what the routes need of it.
//
// Made once the engine is loaded, then shared by handlers. Thread rule: immutable but for the
// metrics and the service, which any thread may call.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/json_type.h"
#include "server/api/answer/usage.h"
#include "server/api/request/request.h"
#include "server/api/request/request_prompt.h"
#include "server/metrics/metrics_page.h"
#include "server/metrics/request_life.h"
#include "server/metrics/request_metrics.h"
#include "service/engine_service.h"
#include "tokenizer/answer_format.h"
#include "tokenizer/chat_template.h"

namespace sluice::server {

struct ServedModel {
  // `tool_format`: how answers have calls, instead of what the template shows.
  // Aliasing: the service must outlive this object, which stays where it is.
  // Errors: those of load_chat_template for `template_file`; kModel for a tokenizer_config.json
  // that is not well-formed.
  ServedModel(EngineService& engine, const std::string& model_directory,
              const std::string& template_file,
              std::optional<ToolFormat> tool_format = std::nullopt);

  ServedModel(const ServedModel&) = delete;  // `rules` points to `chat`
  ServedModel& operator=(const ServedModel&) = delete;

  api::PromptTools prompt_tools() const;
  metrics::EngineReading reading() const;
  // Cached tokens by the memory that has all KV.
  metrics::CachedTokens cached_in_place(int64_t num_tokens) const;

  EngineService& service;
  const std::string directory;
  const ChatTemplate chat;
  const AnswerFormat format;
  const api::RequestRules rules;
  const nlohmann::ordered_json tokenizer_info;  // the body of /tokenizer_info
  mutable metrics::RequestMetrics metrics;
};

}  // namespace sluice::server
