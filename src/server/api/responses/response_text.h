// Texts in the items and tools of a request to /v1/responses.
//
// Used by the readers of both. Errors: those of refuse_field; `place` is the path of the object in
// the body. Thread rule: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/api/request/field.h"

namespace sluice::api {

// A member that must be a text.
std::string text_member(const Json& object, std::string_view name, std::string_view place);
// The same, but empty if the member is missing or null.
std::string optional_text(const Json& object, std::string_view name, std::string_view place);

// A text, or the texts of a list of parts with one of these types, joined by line ends, as those of
// a chat's messages are. Null, also as the text of a part, is "".
std::string joined_text(const Json& content, std::span<const std::string_view> types,
                        const std::string& place);

}  // namespace sluice::api
