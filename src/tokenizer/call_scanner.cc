// Follows the cursor: its depth and state say which member of the object a character belongs to.
#include "tokenizer/call_scanner.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using State = JsonCursor::State;

// The text of a JSON literal with its quotes; "" for ill-formed UTF-8 and lone surrogates.
std::string unquoted(const std::string& literal) {
  const auto value = nlohmann::json::parse(literal, nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

}  // namespace

void CallScanner::reset(std::string source) {
  *this = CallScanner();
  source_ = std::move(source);
}

CallScanner::Step CallScanner::take(char c, const std::vector<std::string>& tools) {
  const bool was_named = is_named();
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
  if (ended) return is_named() ? Step::kEnd : Step::kRefused;
  if (!was_named) source_ += c;
  return is_named() && !was_named ? Step::kNamed : Step::kMore;
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
  // A member given twice could contradict what was passed on.
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
    if (member_ == Member::kArguments) {
      null_arguments_ = c == 'n';
      if (c != '{' && c != 'n') return false;
    }
  }
  const bool ended = cursor_.depth() <= 1 && state != State::kText && state != State::kNumber &&
                     state != State::kLiteral;
  // What ends a number is not a part of it; texts, literals and containers end with their own.
  if (member_ == Member::kName) value_ += c;
  if (member_ == Member::kArguments && !null_arguments_) arguments_ += c;
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

std::string CallScanner::take_arguments() {
  const bool ended = cursor_.depth() == 0;
  if (ended && (!has_arguments_ || null_arguments_)) return "{}";
  return std::exchange(arguments_, {});
}

}  // namespace sluice
