// Tells from a Jinja template's text which of the known chat formats it is.
//
// Used by ChatTemplate. Thread rule: free functions without state.
#pragma once

#include <string_view>
#include <variant>

#include "tokenizer/chat_template.h"

namespace sluice {

// The format of a template, with its variations. Errors: as ChatTemplate's constructor.
std::variant<ChatMlFormat, Llama3Format> recognise_chat_format(std::string_view jinja,
                                                               std::string_view bos_token);

}  // namespace sluice
