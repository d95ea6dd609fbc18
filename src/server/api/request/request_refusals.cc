// Fields that a request may have although Sluice does nothing with them. Routers and clients fill
// in defaults, so a neutral value of what is not done has to be accepted.
#include <array>

#include "server/api/request/field_rows.h"

namespace sluice::api {
namespace {

constexpr std::array kSharedRefusals = {
    hint("user", "who asks"),
    hint("metadata", "notes of the client"),
    hint("store", "answers are never kept"),
    hint("service_tier", "all requests are treated alike"),
    hint("cache_control", "prefixes are always cached"),
    hint("cache_prompt", "prefixes are always cached"),
    hint("prompt_cache_key", "prefixes are always cached"),
    hint("prompt_cache_retention", "prefixes are kept while there is room"),
    hint("safety_identifier", "who asks"),
    hint("client_metadata", "notes of the client"),
    hint("context_management", "the client keeps the conversation"),
    hint("include", "what else the answer may have"),
    hint("verbosity", "how long the answer may be"),
    hint("prediction", "what the answer may look like"),

    hint("guided_decoding_backend", "there is one"),
    not_done("guided_whitespace_pattern", "[]", "blanks are limited to eight"),
    not_done("structural_tag", "[]", "give structured_outputs.structural_tag"),

    not_done("suffix", R"([""])", "it only continues texts"),
    not_done("use_beam_search", "[false]", "it has no beam search"),
    not_done("length_penalty", "[1]", "it has no beam search"),
    not_done("prompt_embeds", "[]", "prompts are texts or token ids"),
    not_done("truncate_prompt_tokens", "[]", "prompts are never cut"),
    not_done("chat_template", "[]", "the template is the model's or the server's"),
    not_done("kv_transfer_params", "[{}]", "prefill and decode run in one process"),
    not_done("priority", "[0]", "requests run in the order of their arrival"),
    not_done("thinking_token_budget", "[]", "thoughts have no limit of their own"),

    not_done("bad_words", "[[]]", "ban tokens with logit_bias"),
    not_done("logits_processors", "[[]]", "the sampler runs no code of clients"),
    not_done("logprob_token_ids", "[[]]",
             "ask for the likeliest tokens with logprobs, or for one id with allowed_token_ids"),
    not_done("n_probs", "[0]", "ask for the likeliest tokens with logprobs"),
    not_done("n_predict", "[-1]", "give max_tokens"),
    not_done("repeat_penalty", "[1]", "give repetition_penalty"),
    not_done("typical_p", "[1]", "the sampler does not have it"),
    not_done("mirostat", "[0]", "the sampler does not have it"),
    not_done("dynatemp_range", "[0]", "the sampler does not have it"),
    not_done("xtc_probability", "[0]", "the sampler does not have it"),
    not_done("dry_multiplier", "[0]", "the sampler does not have it"),
    not_done("spaces_between_special_tokens", "[true]",
             "texts are decoded as the model wrote them"),
};

constexpr std::array kChatRefusals = {
    not_done("audio", "[]", "answers are texts"),
    not_done("modalities", R"([["text"]])", "answers are texts"),
    not_done("mm_processor_kwargs", "[{}]", "messages are texts"),
    not_done("documents", "[[]]", "put them into messages"),
    not_done("functions", "[[]]", "give tools"),
    not_done("function_call", R"(["none","auto"])", "give tool_choice"),
    not_done("web_search_options", "[]", "it searches nothing"),
    not_done("echo", "[false]", "continue_final_message continues a message"),
    not_done("parse_special", "[true]",
             "special tokens of the template always count, those in messages never"),
};

}  // namespace

std::span<const OptionFacts> shared_refusals() { return kSharedRefusals; }
std::span<const OptionFacts> chat_refusals() { return kChatRefusals; }

}  // namespace sluice::api
