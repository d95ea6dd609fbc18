// What a tag begins is decided with its last character; names and keys end with >.
#include "tokenizer/calls/function_scanner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "io/json_type.h"
#include "io/schema_types.h"
#include "tokenizer/calls/call_form.h"

namespace sluice {
namespace {

constexpr size_t kMaxTagName = 1024;  // what is longer is no name

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Whether a character may be in a name or key.
bool is_in_name(char c, const std::string& name) {
  return c != '\n' && c != '<' && name.size() < kMaxTagName;
}

}  // namespace

void FunctionScanner::reset(std::string source) {
  *this = FunctionScanner();
  source_ = std::move(source);
}

CallReader::Step FunctionScanner::take(char c, const CallableTools& tools) {
  Step step = Step::kMore;
  switch (state_) {
    case State::kOpen:
      step = take_open(c) ? Step::kMore : Step::kRefused;
      break;
    case State::kName:
      step = take_name(c, tools) ? Step::kMore : Step::kRefused;
      break;
    case State::kBetween:
      step = take_between(c);
      break;
    case State::kKey:
      step = take_key(c) ? Step::kMore : Step::kRefused;
      break;
    case State::kValue:
      step = take_value(c) ? Step::kMore : Step::kRefused;
      break;
  }
  if (step != Step::kRefused) source_ += c;
  return step;
}

// Nothing but white space comes before the first tag.
bool FunctionScanner::take_open(char c) {
  if (held_.empty() && is_blank(c)) return true;
  held_ += c;
  if (!kOpenFunction.starts_with(held_)) return false;
  if (held_ == kOpenFunction) {
    held_.clear();
    state_ = State::kName;
  }
  return true;
}

// A name that nobody has given is no call, as in other formats.
bool FunctionScanner::take_name(char c, const CallableTools& tools) {
  if (c != '>') {
    held_ += c;
    return is_in_name(c, held_);
  }
  const CallableTool* const tool = find_tool(tools, held_);
  if (tool == nullptr) return false;
  schema_ = tool->parameters;
  name_ = std::exchange(held_, {});
  state_ = State::kBetween;
  return true;
}

// Either tag begins with <, and their second characters differ.
CallReader::Step FunctionScanner::take_between(char c) {
  if (held_.empty() && is_blank(c)) return Step::kMore;
  held_ += c;
  if (held_ == kCloseFunction) {
    arguments_ = fmt::format("{{{}}}", arguments_);
    return Step::kEnd;
  }
  if (held_ == kOpenParameter) {
    held_.clear();
    state_ = State::kKey;
    return Step::kMore;
  }
  const bool may_be = kOpenParameter.starts_with(held_) || kCloseFunction.starts_with(held_);
  return may_be ? Step::kMore : Step::kRefused;
}

// What the value may be is known before it comes.
bool FunctionScanner::take_key(char c) {
  if (c != '>') {
    held_ += c;
    return is_in_name(c, held_);
  }
  if (held_.empty() || std::ranges::find(keys_, held_) != keys_.end()) return false;
  types_ = schema_ ? property_types(*schema_, held_) : unsigned{kPlainAny};
  keys_.push_back(std::exchange(held_, {}));
  value_.clear();
  cursor_.reset();
  state_ = State::kValue;
  return true;
}

// The cursor follows a list or an object from its first character on, and is dropped once the value
// turns out to be none.
bool FunctionScanner::take_value(char c) {
  const bool is_first = value_.find_first_not_of(" \t\r\n") == value_.npos && !is_blank(c);
  const bool opens =
      (c == '{' && (types_ & kPlainObject) != 0) || (c == '[' && (types_ & kPlainArray) != 0);
  if (is_first && opens) cursor_.emplace(JsonCursor::Texts::kWithControls);
  value_ += c;
  if (cursor_ && !cursor_->take(c)) cursor_.reset();
  const bool in_text = cursor_ && (cursor_->state() == JsonCursor::State::kText ||
                                   cursor_->state() == JsonCursor::State::kKeyText);
  if (c != '>' || in_text || !value_.ends_with(kCloseParameter)) return true;
  value_.resize(value_.size() - kCloseParameter.size());
  state_ = State::kBetween;
  return finish_value();
}

// Templates write one line end on each side of a value, so that only one is left out.
bool FunctionScanner::finish_value() {
  std::string_view text = value_;
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  const std::string key = json_of_plain(keys_.back(), kPlainString);
  const std::string value = json_of_plain(text, types_);
  if (key.empty() || value.empty()) return false;
  if (!arguments_.empty()) arguments_ += ", ";
  arguments_ += fmt::format("{}: {}", key, value);
  return true;
}

}  // namespace sluice
