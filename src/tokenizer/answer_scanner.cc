// One automaton step for each character. Text that may turn out to be a tag is held back; it is at
// most white space and one tag.
#include "tokenizer/answer_scanner.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

constexpr std::string_view kOpenCall = "<tool_call>", kCloseCall = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";

std::string_view without_leading_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\n\r"), text.size()));
}

}  // namespace

std::optional<ToolFormat> find_tool_format(std::string_view name) {
  if (name == "none") return ToolFormat::kNone;
  if (name == "hermes") return ToolFormat::kHermes;
  if (name == "llama3_json") return ToolFormat::kLlama3Json;
  return std::nullopt;
}

AnswerScanner::AnswerScanner(AnswerFormat format, std::vector<std::string> tools)
    : format_(format), tools_(std::move(tools)), state_(State::kStart) {
  SLUICE_CHECK(format.thinks || !format.starts_in_thought);
}

std::vector<AnswerEvent> AnswerScanner::push(std::string_view delta) {
  for (const char c : delta) take(c);
  return std::exchange(events_, {});
}

void AnswerScanner::take(char c) {
  switch (state_) {
    case State::kStart:
    case State::kAfterThought:
      return take_start(c);
    case State::kThought:
    case State::kContent:
      return take_tagged(c);
    case State::kCall:
      return take_call(c);
    case State::kAfterCall:
      return take_after_call(c);
  }
}

// Decides what an answer begins with as soon as its first characters allow only one thing. What was
// held back until then goes through the state that was found.
void AnswerScanner::take_start(char c) {
  held_ += c;
  const std::string_view front = without_leading_space(held_);
  if (front.empty()) return;
  const bool in_thought = state_ == State::kStart && format_.starts_in_thought;
  if (state_ == State::kStart && format_.thinks && kOpenThought.starts_with(front)) {
    if (front != kOpenThought) return;
    held_.clear();
    state_ = State::kThought;
    drops_lines_ = true;
    return;
  }
  if (format_.tools == ToolFormat::kLlama3Json && !in_thought) {
    if (front == "{") {
      held_.pop_back();
      begin_call(std::exchange(held_, {}));
      return take_call(c);
    }
    if (front == kPythonTag) return begin_call(std::exchange(held_, {}));
    if (kPythonTag.starts_with(front)) return;
  }
  drops_lines_ = in_thought || state_ == State::kAfterThought;
  retake(in_thought ? State::kThought : State::kContent, std::exchange(held_, {}));
}

void AnswerScanner::retake(State state, const std::string& text) {
  state_ = state;
  for (const char c : text) take(c);
}

std::string_view AnswerScanner::next_tag() const {
  if (state_ == State::kThought) return kCloseThought;
  return format_.tools == ToolFormat::kHermes ? kOpenCall : std::string_view();
}

void AnswerScanner::take_tagged(char c) {
  const std::string_view tag = next_tag();
  held_ += c;
  // Gives up the first characters until the others may be the front of the tag.
  while (!tag.starts_with(held_)) {
    write(held_[0]);
    held_.erase(0, 1);
  }
  if (tag.empty() || held_ != tag) return;
  held_.clear();
  std::string lines = std::exchange(lines_, {});
  if (state_ == State::kContent) return begin_call(lines.append(tag));
  state_ = State::kAfterThought;
}

void AnswerScanner::write(char c) {
  if (c == '\n' && drops_lines_) return;
  drops_lines_ = false;
  if (c == '\n' && !next_tag().empty()) {
    lines_ += c;
    return;
  }
  const auto kind =
      state_ == State::kThought ? AnswerEvent::Kind::kThought : AnswerEvent::Kind::kContent;
  emit(kind, std::exchange(lines_, {}));
  emit(kind, {&c, 1});
}

void AnswerScanner::begin_call(std::string source) {
  state_ = State::kCall;
  call_.reset(std::move(source));
}

// The name comes first, so that a client can show the call; then the arguments as they come. The
// character that ends a refused call is content again, and may begin a tag.
void AnswerScanner::take_call(char c) {
  using Kind = AnswerEvent::Kind;
  const CallScanner::Step step = call_.take(c, tools_);
  if (step == CallScanner::Step::kNamed) emit(Kind::kCall, call_.name());
  if (call_.is_named()) emit(Kind::kArguments, call_.take_arguments());
  if (step == CallScanner::Step::kEnd) {
    emit(Kind::kCallEnd, {});
    ++num_calls_;
    drops_lines_ = true;
    state_ = format_.tools == ToolFormat::kHermes ? State::kAfterCall : State::kContent;
  } else if (step == CallScanner::Step::kRefused) {
    break_call();
    drops_lines_ = false;
    retake(State::kContent, {c});
  }
}

void AnswerScanner::break_call() {
  if (call_.is_named()) return emit(AnswerEvent::Kind::kCallBroken, {});
  emit(AnswerEvent::Kind::kContent, call_.source());
}

// The closing tag is dropped. Without it the next text is content: the call was complete.
void AnswerScanner::take_after_call(char c) {
  held_ += c;
  const std::string_view front = without_leading_space(held_);
  if (front == kCloseCall) {
    held_.clear();
    state_ = State::kContent;
  } else if (!kCloseCall.starts_with(front)) {
    retake(State::kContent, std::exchange(held_, {}));
  }
}

// What was held back is no tag any more. Line ends that would have come before a call count as
// text.
std::vector<AnswerEvent> AnswerScanner::finish() {
  using Kind = AnswerEvent::Kind;
  if (state_ == State::kStart || state_ == State::kAfterThought) {
    const bool in_thought = state_ == State::kStart && format_.starts_in_thought;
    drops_lines_ = in_thought || state_ == State::kAfterThought;
    retake(in_thought ? State::kThought : State::kContent, std::exchange(held_, {}));
  }
  switch (state_) {
    case State::kThought:
    case State::kContent:
      for (const char c : std::exchange(held_, {})) write(c);
      if (state_ == State::kContent) emit(Kind::kContent, lines_);
      break;
    case State::kCall:
      break_call();
      break;
    default:
      emit(Kind::kContent, without_leading_space(held_));
  }
  return std::exchange(events_, {});
}

// Texts of the same kind become one event; a text without characters becomes none.
void AnswerScanner::emit(AnswerEvent::Kind kind, std::string_view text) {
  using Kind = AnswerEvent::Kind;
  const bool is_text = kind == Kind::kThought || kind == Kind::kContent || kind == Kind::kArguments;
  if (is_text && text.empty()) return;
  if (is_text && !events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text)});
  }
}

}  // namespace sluice
