// Reads any text as the body of each request: a fault that names its remedy, or values that the
// engine takes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api/messages/messages_request.h"
#include "server/api/request/request.h"
#include "server/api/responses/response_request.h"

namespace {

using sluice::api::CommonRequest;

constexpr int32_t kVocab = 1000;
constexpr int64_t kMaxModelLen = 4096;

void require(bool condition) {
  if (!condition) std::abort();
}

void require_ids(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) require(id >= 0 && id < kVocab);
}

void require_fault(const sluice::http::Fault& fault) {
  require(fault.status == 400 && !fault.message.empty());
  require(!sluice::http::fault_body(fault).empty());
}

void require_common(const CommonRequest& request, size_t num_prompts) {
  const auto tokens = sluice::api::resolve_max_tokens(request, 1, kMaxModelLen);
  if (const auto* fault = std::get_if<sluice::http::Fault>(&tokens)) return require_fault(*fault);
  sluice::SamplingParams params = request.params;
  params.max_tokens = std::get<int32_t>(tokens);
  params.validate();
  require_ids(params.stop_token_ids);
  require(params.max_tokens < kMaxModelLen);
  const auto choices = sluice::api::choices_of(request, num_prompts);
  require(choices.size() == num_prompts * static_cast<size_t>(request.n));
  const bool is_negative = params.seed.value_or(0) < 0;
  for (const auto& choice : choices) require(is_negative || choice.seed.value_or(0) >= 0);
}

void require_value(const sluice::api::CompletionRequest& request) {
  require(!request.prompts.empty() && request.prompts.size() <= sluice::api::kMaxPrompts);
  for (const auto& prompt : request.prompts) {
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) require_ids(*ids);
    require(std::visit([](const auto& value) { return !value.empty(); }, prompt));
  }
  require_common(request, request.prompts.size());
}

void require_value(const sluice::api::ChatRequest& request) {
  const auto& conversation = request.conversation;
  require(conversation.messages.is_array() && !conversation.messages.empty());
  require(conversation.tools.is_null() || !conversation.tools.empty());
  require(conversation.template_kwargs.is_object());
  require(!conversation.add_generation_prompt || !conversation.continue_final_message);
  require_common(request, 1);
}

void require_value(const sluice::api::TokenizeRequest& request) {
  const auto* conversation = std::get_if<sluice::api::Conversation>(&request.input);
  require(conversation == nullptr || conversation->messages.is_array());
}

void require_value(const sluice::api::PinRequest& request) {
  require(!request.name.empty() && request.name[0] != '.');
}

void require_value(const sluice::api::DetokenizeRequest& request) { require_ids(request.tokens); }

template <typename Request>
void require_read(const sluice::api::Read<Request>& read) {
  if (const auto* fault = std::get_if<sluice::http::Fault>(&read)) return require_fault(*fault);
  require_value(std::get<Request>(read));
}

}  // namespace

// An Error that leaves a reader is a defect, so nothing is caught.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  static const sluice::api::RequestRules rules{.defaults = {}, .vocab_size = kVocab};
  require_read(sluice::api::read_completion(body, rules));
  require_read(sluice::api::read_chat(body, rules));
  require_read(sluice::api::read_messages(body, rules));
  require_read(sluice::api::read_response(body, rules));
  require_read(sluice::api::read_pin(body, rules));
  require_read(sluice::api::read_tokenize(body, rules));
  require_read(sluice::api::read_detokenize(body, rules));
  return 0;
}
