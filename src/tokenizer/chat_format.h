// Tells from a Jinja template's text which of the known chat formats it is.
//
// Used by ChatTemplate. A template is known as a whole or not at all: whatever else it does could
// change the text in a way that Sluice does not follow. Thread rule: free functions without state.
#pragma once

#include <cstddef>
#include <string_view>
#include <variant>

#include "tokenizer/chat_template.h"

namespace sluice {

// Longer templates are refused unread; those known have less than 5 KiB.
inline constexpr size_t kMaxTemplateBytes = size_t{64} << 10;

// The format of a template, with its variations. Errors: as ChatTemplate's constructor.
std::variant<ChatMlFormat, Llama3Format> recognise_chat_format(std::string_view jinja,
                                                               std::string_view bos_token);

}  // namespace sluice
