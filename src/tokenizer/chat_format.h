// Recognises the chat format of a Jinja template from its text.
//
// Used by ChatTemplate. The whole template must be a known one: any other statement in it could
// change the text in a way that Sluice does not reproduce. Thread rule: free functions without
// state.
#pragma once

#include <cstddef>
#include <string_view>
#include <variant>

#include "tokenizer/chat_template.h"

namespace sluice {

// Longer templates are refused without lexing; the known ones have less than 5 KiB.
inline constexpr size_t kMaxTemplateBytes = size_t{64} << 10;

// The format of a template, with its variations. Errors: as ChatTemplate's constructor.
std::variant<ChatMlFormat, Llama3Format> recognise_chat_format(std::string_view jinja,
                                                               std::string_view bos_token);

}  // namespace sluice
