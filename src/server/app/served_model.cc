// What is derived from a model's files once, when it is loaded.
#include "server/app/served_model.h"

#include <ctime>
#include <filesystem>
#include <iterator>

#include "io/hub_cache.h"
#include "io/json.h"

namespace sluice::server {
namespace {

using Json = nlohmann::ordered_json;

// A token of tokenizer_config.json is a text, or an object with its content.
Json token_text(const Json& token) {
  if (token.is_object() && token.contains("content")) return token.at("content");
  return token.is_string() ? token : Json();
}

// tokenizer_config.json in the form that clients read: tokens and the chat template are plain texts
// or null.
Json tokenizer_info_of(const std::filesystem::path& directory, const Tokenizer& tokenizer) {
  Json info = Json::object();
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (std::filesystem::exists(path)) info = Json(read_json_file(path));
  if (!info.contains("tokenizer_class")) info["tokenizer_class"] = "PreTrainedTokenizerFast";
  const SpecialTokens& tokens = tokenizer.config().special_tokens;  // a GGUF file's, too
  for (const char* name : {"bos_token", "eos_token", "pad_token"}) {
    const auto token = tokens.find(name);
    info[name] = info.contains(name)     ? token_text(info.at(name))
                 : token != tokens.end() ? Json(token->second)
                                         : Json();
  }
  const std::string& chat_template = tokenizer.config().chat_template;
  info["chat_template"] = chat_template.empty() ? Json() : Json(chat_template);
  return info;
}

AnswerFormat answer_format_of(const ChatTemplate& chat, std::optional<ToolFormat> tool_format) {
  AnswerFormat format = recognise_answer_format(chat);
  format.tools = tool_format.value_or(format.tools);
  return format;
}

metrics::Histogram::Reading reading_of(const StepSizes& steps) {
  metrics::Histogram::Reading reading{.sum = static_cast<double>(steps.num_tokens)};
  for (size_t i = 0; i < steps.num_steps.size(); ++i) {
    reading.count += steps.num_steps[i];
    if (i == StepSizes::kBounds.size()) break;
    reading.bounds.push_back(static_cast<double>(StepSizes::kBounds[i]));
    reading.cumulative.push_back(reading.count);
  }
  return reading;
}

}  // namespace

ServedModel::ServedModel(EngineService& engine, const std::string& model_directory,
                         const std::string& template_file, std::optional<ToolFormat> tool_format)
    : service(engine),
      directory(model_directory),
      chat(load_chat_template(engine.tokenizer().config(), template_file)),
      format(answer_format_of(chat, tool_format)),
      rules{.defaults = engine.default_sampling_params(),
            .vocab_size = engine.vocab_size(),
            .chat = &chat},
      tokenizer_info(tokenizer_info_of(find_model(model_directory), engine.tokenizer())),
      metrics(engine.max_model_len()) {}

api::PromptTools ServedModel::prompt_tools() const {
  return {.tokenizer = service.tokenizer(), .chat = chat, .now = local_time()};
}

metrics::CachedTokens ServedModel::cached_in_place(int64_t num_tokens) const {
  if (service.kv_facts().on_host) return {.host = num_tokens};
  return {.device = num_tokens};
}

metrics::EngineReading ServedModel::reading() const {
  const ServiceSnapshot now = service.snapshot();
  const KvFacts kv = service.kv_facts();
  metrics::EngineReading reading{.num_running = now.num_running,
                                 .num_waiting = now.num_waiting,
                                 .num_preemptions = now.stats.num_preemptions,
                                 .num_blocks = now.kv.num_blocks,
                                 .num_used_blocks = now.kv.num_used,
                                 .block_tokens = kv.block_tokens,
                                 .num_host_blocks = kv.on_host ? kv.num_blocks : 0,
                                 .step_tokens = reading_of(now.steps),
                                 .last_progress_s = static_cast<double>(now.stalled_ns) * 1e-9,
                                 .num_warnings = std::ssize(now.warnings)};
  const auto bytes = [&](int64_t num_blocks) { return num_blocks * kv.block_bytes; };
  const metrics::KvBytes all{
      .used = bytes(now.kv.num_used),
      .cached = bytes(now.kv.num_cached),
      .free = bytes(now.kv.num_blocks - now.kv.num_used - now.kv.num_cached)};
  (kv.on_host ? reading.host_kv : reading.device_kv) = all;
  if (kv.on_host) {
    reading.transfers = metrics::KvTransfers{.h2d_bytes = now.stats.kv_h2d_bytes,
                                             .d2h_bytes = now.stats.kv_d2h_bytes,
                                             .num_slot_waits = now.stats.num_slot_waits,
                                             .num_hot_page_hits = now.stats.num_hot_page_hits,
                                             .num_hot_page_misses = now.stats.num_hot_page_misses};
  }
  if (kv.has_store) {
    reading.store = metrics::StoreCounts{.read_bytes = now.stats.store_read_bytes,
                                         .written_bytes = now.stats.store_written_bytes,
                                         .num_skipped_blocks = now.stats.num_store_blocks_skipped,
                                         .num_bad_files = now.stats.num_store_bad_files,
                                         .num_write_errors = now.stats.num_store_write_errors};
  }
  if (const auto& counts = now.stats.experts) {
    reading.experts = metrics::ExpertReads{.num_hits = counts->num_hits,
                                           .num_misses = counts->num_misses,
                                           .fetched_bytes = counts->fetched_bytes,
                                           .streamed_bytes = counts->streamed_bytes};
  }
  if (const auto& counts = now.stats.kv_events) {
    reading.events =
        metrics::KvEventSums{.num_sent = counts->num_sent, .num_dropped = counts->num_dropped};
  }
  if (const auto& counts = now.stats.speculation) {
    reading.drafts = metrics::DraftCounts{.num_drafts = counts->num_drafts,
                                          .num_draft_tokens = counts->num_draft_tokens,
                                          .num_accepted_tokens = counts->num_accepted_tokens};
  }
  return reading;
}

}  // namespace sluice::server
