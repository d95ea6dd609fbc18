// Follows the cursor: its depth and state say which member of the object a character belongs to.
#include "tokenizer/calls/call_scanner.h"

#include <algorithm>
#include <utility>

#include "io/json.h"
#include "io/json_type.h"
#include "io/schema_types.h"
#include "sluice/error.h"

namespace sluice {

const CallableTool* find_tool(const CallableTools& tools, std::string_view name) {
  const auto it = std::ranges::find(tools, name, &CallableTool::name);
  return it == tools.end() ? nullptr : &*it;
}

namespace {

using State = JsonCursor::State;

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

CallReader::Step CallScanner::take(char c, const CallableTools& tools) {
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

bool CallScanner::take_value(char c, const CallableTools& tools) {
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

bool CallScanner::finish_name(const CallableTools& tools) {
  std::string name = unquoted(value_);
  if (name.empty() || find_tool(tools, name) == nullptr) return false;
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
