// Reads the value of an option from text, by the kind of its row (sluice/option_row.h).
//
// Used for the command line, the environment, and texts that Python gives, such as "4G". Thread
// rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sluice/option_row.h"

namespace sluice {

// Empty for a number that means an unset option. `source` is the name for error messages.
// Errors: kInvalidArgument naming source, text and what is allowed.
std::optional<OptionValue> read_option_value(const OptionFacts& facts, std::string_view source,
                                             std::string_view text);

// "off, chunked, layerwise".
std::string choices_text(const OptionFacts& facts);

}  // namespace sluice
