// Follows the cursor: its depth and state say which member of the object a character belongs to.
#include "tokenizer/call_scanner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using State = JsonCursor::State;

// Models write line ends and tabs into the texts of JSON as they are. What they mean is plain.
std::string with_escaped_controls(std::string_view json) {
  std::string escaped;
  bool in_text = false, after_backslash = false;
  for (const char c : json) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20;
    if (in_text && is_control) {
      escaped += fmt::format("\\u{:04x}", c);
    } else {
      escaped += c;
    }
    if (c == '"' && !after_backslash) in_text = !in_text;
    after_backslash = in_text && c == '\\' && !after_backslash;
  }
  return escaped;
}

// The text of a JSON literal with its quotes; "" for ill-formed UTF-8 and lone surrogates.
std::string unquoted(const std::string& literal) {
  const auto value = nlohmann::json::parse(with_escaped_controls(literal), nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool is_object(std::string_view json) {
  try {
    return parse_ordered_json(json, "arguments").is_object();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void CallScanner::reset(std::string source) {
  *this = CallScanner();
  source_ = std::move(source);
}

CallScanner::Step CallScanner::take(char c, const std::vector<std::string>& tools) {
  const State before = cursor_.state();
  const size_t depth = cursor_.depth();
  constexpr std::string_view kBefore = "{ \t\r\n";
  if (depth == 0 && kBefore.find(c) == kBefore.npos) return Step::kRefused;
  if (!cursor_.take(c)) return Step::kRefused;
  if (depth == 1 &&
      (before == State::kFirstKey || before == State::kKey || before == State::kKeyText)) {
    if (!take_key(c)) return Step::kRefused;
  } else if (depth >= 1 && (in_value_ || before == State::kValue)) {
    if (!take_value(c, tools)) return Step::kRefused;
  }
  const bool ended = depth == 1 && cursor_.depth() == 0;
  if (ended && (!is_named() || !finish_arguments())) return Step::kRefused;
  source_ += c;
  return ended ? Step::kEnd : Step::kMore;
}

bool CallScanner::lacks_brace() const {
  return is_named() && has_arguments_ && cursor_.depth() == 1 &&
         cursor_.state() == State::kAfterValue;
}

bool CallScanner::take_key(char c) {
  if (cursor_.state() == State::kKeyText) {
    key_ += c;
    return true;
  }
  if (cursor_.state() != State::kColon) return true;  // white space, or the end of {}
  const std::string key = unquoted(std::exchange(key_, {}) + c);
  member_ = key == "name"                               ? Member::kName
            : key == "arguments" || key == "parameters" ? Member::kArguments
                                                        : Member::kOther;
  // A member given twice could mean either of its values.
  bool& seen = member_ == Member::kName ? has_name_ : has_arguments_;
  if (member_ != Member::kOther && std::exchange(seen, true)) return false;
  return true;
}

bool CallScanner::take_value(char c, const std::vector<std::string>& tools) {
  const State state = cursor_.state();
  if (!in_value_) {
    if (state == State::kValue) return true;  // white space before it
    in_value_ = true;
    if (member_ == Member::kName && c != '"') return false;
    if (member_ == Member::kArguments && c != '{' && c != '"' && c != 'n') return false;
  }
  const bool ended = cursor_.depth() <= 1 && state != State::kText && state != State::kNumber &&
                     state != State::kLiteral;
  // What ends a number is not a part of it; texts, literals and containers end with their own.
  if (member_ == Member::kName) value_ += c;
  if (member_ == Member::kArguments) arguments_ += c;
  if (!ended) return true;
  in_value_ = false;
  return member_ != Member::kName || finish_name(tools);
}

bool CallScanner::finish_name(const std::vector<std::string>& tools) {
  std::string name = unquoted(value_);
  if (name.empty() || std::find(tools.begin(), tools.end(), name) == tools.end()) return false;
  name_ = std::move(name);
  return true;
}

// A JSON text of the arguments is what OpenAI's API has, and models copy it.
bool CallScanner::finish_arguments() {
  if (arguments_.starts_with('"')) {
    const bool is_empty = arguments_ == "\"\"";
    arguments_ = is_empty ? std::string() : unquoted(arguments_);
    if (arguments_.empty() && !is_empty) return false;
  }
  if (arguments_.empty() || arguments_ == "null") {
    arguments_ = "{}";
    return true;
  }
  arguments_ = with_escaped_controls(arguments_);
  return is_object(arguments_);
}

}  // namespace sluice
