// Source: RFC 8259, as a pushdown automaton.
#include "tokenizer/calls/json_cursor.h"

namespace sluice {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

}  // namespace

bool JsonCursor::take(char c) {
  switch (state_) {
    case State::kKeyText:
    case State::kText:
      return take_text(c);
    case State::kNumber:
      return take_number(c);
    case State::kLiteral:
      if (c != literal_[0]) return false;
      literal_.remove_prefix(1);
      if (literal_.empty()) state_ = State::kAfterValue;
      return true;
    default:
      break;
  }
  if (is_space(c)) return true;
  switch (state_) {
    case State::kFirstKey:
    case State::kKey:
      if (c == '}' && state_ == State::kFirstKey) return close(), true;
      state_ = State::kKeyText;
      return c == '"';
    case State::kColon:
      state_ = State::kValue;
      return c == ':';
    case State::kAfterValue:
      return take_after_value(c);
    default:
      if (c == ']' && state_ == State::kFirstItem) return close(), true;
      return begin_value(c);
  }
}

bool JsonCursor::begin_value(char c) {
  if (c == '{' || c == '[') return open(c);
  if (c == '"') {
    state_ = State::kText;
    return true;
  }
  if (c == '-' || is_digit(c)) {
    state_ = State::kNumber;
    number_ = c == '-' ? Number::kMinus : c == '0' ? Number::kZero : Number::kInteger;
    return true;
  }
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (c != literal[0]) continue;
    state_ = State::kLiteral;
    literal_ = literal.substr(1);
    return true;
  }
  return false;
}

bool JsonCursor::take_text(char c) {
  if (static_cast<unsigned char>(c) < 0x20 && texts_ == Texts::kStrict) return false;
  if (escape_ == 1) {
    escape_ = c == 'u' ? 5 : 0;
    return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
  }
  if (escape_ > 1) {
    escape_ = escape_ == 2 ? 0 : escape_ - 1;
    return is_hex(c);
  }
  if (c == '\\') escape_ = 1;
  if (c == '"') state_ = state_ == State::kKeyText ? State::kColon : State::kAfterValue;
  return true;
}

bool JsonCursor::is_whole_number() const {
  return number_ == Number::kZero || number_ == Number::kInteger || number_ == Number::kFraction ||
         number_ == Number::kExponent;
}

// A number ends before the first character that is not its own.
bool JsonCursor::take_number(char c) {
  const bool digit = is_digit(c);
  const bool whole_part = number_ == Number::kZero || number_ == Number::kInteger;
  if (digit && number_ == Number::kMinus) {
    number_ = c == '0' ? Number::kZero : Number::kInteger;
  } else if (digit && (number_ == Number::kPoint || number_ == Number::kFraction)) {
    number_ = Number::kFraction;
  } else if (digit && number_ >= Number::kE) {
    number_ = Number::kExponent;
  } else if (c == '.' && whole_part) {
    number_ = Number::kPoint;
  } else if ((c == 'e' || c == 'E') && (whole_part || number_ == Number::kFraction)) {
    number_ = Number::kE;
  } else if ((c == '+' || c == '-') && number_ == Number::kE) {
    number_ = Number::kSign;
  } else if (!digit || number_ != Number::kInteger) {
    if (!is_whole_number()) return false;
    state_ = State::kAfterValue;
    return take(c);
  }
  return true;
}

bool JsonCursor::take_after_value(char c) {
  if (open_.empty()) return false;
  if (c == ',') {
    state_ = open_.back() == '{' ? State::kKey : State::kValue;
    return true;
  }
  if (c != (open_.back() == '{' ? '}' : ']')) return false;
  close();
  return true;
}

bool JsonCursor::open(char c) {
  if (open_.size() == kMaxCursorDepth) return false;
  open_.push_back(c);
  state_ = c == '{' ? State::kFirstKey : State::kFirstItem;
  return true;
}

void JsonCursor::close() {
  open_.pop_back();
  state_ = State::kAfterValue;
}

}  // namespace sluice
