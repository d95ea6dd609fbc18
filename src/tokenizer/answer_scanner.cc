// One automaton step for each character. Text that may turn out to be a tag or a call is held back.
#include "tokenizer/answer_scanner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/error.h"
#include "tokenizer/calls/call_form.h"
#include "tokenizer/calls/function_scanner.h"

namespace sluice {
namespace {

using Kind = AnswerEvent::Kind;

// A front of a call's tag with so many characters is nothing else: "<tool_", "<|pyth".
constexpr size_t kSureFront = 6;

std::string_view without_leading_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\n\r"), text.size()));
}

// Whether text before a call of Llama's form is whole, may become so, or is something else.
enum class Lead { kWhole, kMaybe, kNone };

// `text` ends with the brace that begins the call if it is whole.
Lead llama_lead(std::string_view text, bool is_first) {
  text = without_leading_space(text);
  const bool has_separator = !text.empty() && (text[0] == ';' || text[0] == ',');
  if (!is_first && has_separator) text = without_leading_space(text.substr(1));
  if (kPythonTag.starts_with(text) && text != kPythonTag) return Lead::kMaybe;  // also ""
  if (text.starts_with(kPythonTag)) {
    text = without_leading_space(text.substr(kPythonTag.size()));
  }
  if (text.starts_with('[')) text = without_leading_space(text.substr(1));
  if (text.empty()) return Lead::kMaybe;
  return text == "{" ? Lead::kWhole : Lead::kNone;
}

std::unique_ptr<CallReader> reader_of(ToolFormat format) {
  if (format == ToolFormat::kQwen3Coder) return std::make_unique<FunctionScanner>();
  return std::make_unique<CallScanner>();
}

}  // namespace

std::optional<ToolFormat> find_tool_format(std::string_view name) {
  if (name == "none") return ToolFormat::kNone;
  if (name == "hermes") return ToolFormat::kHermes;
  if (name == "llama3_json") return ToolFormat::kLlama3Json;
  if (name == "qwen3_coder") return ToolFormat::kQwen3Coder;
  return std::nullopt;
}

AnswerScanner::AnswerScanner(AnswerFormat format, CallableTools tools)
    : format_(format),
      tools_(std::move(tools)),
      state_(State::kStart),
      call_(reader_of(format.tools)) {
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
    case State::kThoughtCall:
      return take_thought_call(c);
    case State::kCall:
      return take_call(c);
    case State::kUnclosed:
      return take_unclosed(c);
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
  drops_lines_ = in_thought || state_ == State::kAfterThought;
  if (format_.tools == ToolFormat::kLlama3Json && !in_thought) {
    const Lead lead = llama_lead(front, true);
    if (lead == Lead::kMaybe) return;
    if (lead == Lead::kWhole) return begin_call(std::exchange(held_, {}));
  }
  retake(in_thought ? State::kThought : State::kContent, std::exchange(held_, {}));
}

void AnswerScanner::retake(State state, const std::string& text) {
  state_ = state;
  for (const char c : text) take(c);
}

bool AnswerScanner::has_tags() const {
  return state_ == State::kThought || has_call_tags(format_.tools);
}

bool AnswerScanner::may_be_tag(std::string_view text) const {
  const bool in_thought = state_ == State::kThought;
  if (in_thought && kCloseThought.starts_with(text)) return true;
  if (!has_call_tags(format_.tools) || (in_thought && keeps_tail_)) return false;
  return kOpenCall.starts_with(text);
}

void AnswerScanner::take_tagged(char c) {
  held_ += c;
  // Gives up the first characters until the others may be the front of a tag.
  while (!held_.empty() && !may_be_tag(held_)) {
    write(held_[0]);
    held_.erase(0, 1);
  }
  if (held_ == kCloseThought) {
    held_.clear();
    lines_.clear();
    state_ = State::kAfterThought;
  } else if (held_ == kOpenCall && state_ == State::kContent) {
    begin_call(std::exchange(held_, {}));
  } else if (held_ == kOpenCall) {
    state_ = State::kThoughtCall;
    tail_ = std::exchange(held_, {});
    inner_ = std::make_unique<AnswerScanner>(AnswerFormat{.tools = format_.tools}, tools_);
    inner_events_ = inner_->push(tail_);
  }
}

// Text that is no call, and the end of the thought, show that the model only thinks about a call.
void AnswerScanner::take_thought_call(char c) {
  tail_ += c;
  std::vector<AnswerEvent> events = inner_->push({&c, 1});
  const bool has_text = std::ranges::any_of(
      events, [](const AnswerEvent& event) { return event.kind == Kind::kContent; });
  std::ranges::move(events, std::back_inserter(inner_events_));
  if (has_text || tail_.ends_with(kCloseThought)) keep_in_thought();
}

void AnswerScanner::keep_in_thought() {
  inner_.reset();
  keeps_tail_ = true;
  retake(State::kThought, std::exchange(tail_, {}));
  keeps_tail_ = false;
}

void AnswerScanner::write(char c) {
  if (c == '\n' && drops_lines_) return;
  drops_lines_ = false;
  if (c == '\n' && has_tags()) {
    lines_ += c;
    return;
  }
  const Kind kind = state_ == State::kThought ? Kind::kThought : Kind::kContent;
  if (kind == Kind::kContent) {
    has_content_ = true;
    after_call_ = false;
  }
  emit(kind, std::exchange(lines_, {}));
  emit(kind, {&c, 1});
}

// `source` of Llama's form has the first brace of the call.
void AnswerScanner::begin_call(std::string source) {
  state_ = State::kCall;
  const bool has_brace = source.ends_with('{');
  if (has_brace) {
    source.pop_back();
    in_list_ = in_list_ || source.find('[') != source.npos;
  }
  call_->reset(std::move(source));
  if (has_brace) take_call('{');
}

// The character that ends a refused call is content again, and may begin a tag.
void AnswerScanner::take_call(char c) {
  if (c == '<' && has_call_tags(format_.tools) && call_->lacks_brace()) {
    state_ = State::kUnclosed;
    held_ = c;
    return;
  }
  const CallReader::Step step = call_->take(c, tools_);
  if (step == CallReader::Step::kEnd) {
    end_call();
    state_ = State::kAfterCall;
  } else if (step == CallReader::Step::kRefused) {
    break_call();
    retake(State::kContent, {c});
  }
}

void AnswerScanner::take_unclosed(char c) {
  held_ += c;
  if (held_ == kCloseCall && call_->take('}', tools_) == CallReader::Step::kEnd) {
    held_.clear();
    end_call();
    state_ = State::kContent;
  } else if (held_ == kCloseCall || !kCloseCall.starts_with(held_)) {
    break_call();
    retake(State::kContent, std::exchange(held_, {}));
  }
}

// Line ends before the first stretch of content are left out; after it they wait for the next.
void AnswerScanner::end_call() {
  emit(Kind::kCall, call_->name());
  emit(Kind::kArguments, call_->arguments());
  emit(Kind::kCallEnd, {});
  ++num_calls_;
  after_call_ = true;
  drops_lines_ = !has_content_;
  if (!has_content_) lines_.clear();
}

void AnswerScanner::break_call() {
  state_ = State::kContent;
  for (const char c : call_->source()) write(c);
}

// The closing tag is dropped. Without it the next text is content: the call was complete.
void AnswerScanner::take_after_call(char c) {
  if (format_.tools == ToolFormat::kLlama3Json) return take_after_llama_call(c);
  held_ += c;
  const std::string_view front = without_leading_space(held_);
  if (front == kCloseCall) {
    held_.clear();
    state_ = State::kContent;
  } else if (!kCloseCall.starts_with(front)) {
    retake(State::kContent, std::exchange(held_, {}));
  }
}

void AnswerScanner::take_after_llama_call(char c) {
  held_ += c;
  const Lead lead = llama_lead(held_, false);
  if (lead == Lead::kWhole) return begin_call(std::exchange(held_, {}));
  if (lead == Lead::kMaybe) return;
  if (in_list_ && without_leading_space(held_) == "]") {
    in_list_ = false;
    held_.clear();
    return;
  }
  retake(State::kContent, std::exchange(held_, {}));
}

// What was held back is no tag any more. Line ends that would have come before a call count as
// text.
std::vector<AnswerEvent> AnswerScanner::finish(AnswerEnd end) {
  if (state_ == State::kThoughtCall) {
    if (end == AnswerEnd::kModel && finish_thought_calls()) return std::exchange(events_, {});
    keep_in_thought();
  }
  if (state_ == State::kStart || state_ == State::kAfterThought) {
    const bool in_thought = state_ == State::kStart && format_.starts_in_thought;
    drops_lines_ = in_thought || state_ == State::kAfterThought;
    state_ = in_thought ? State::kThought : State::kContent;
  }
  const bool is_cut = end == AnswerEnd::kCut;
  if (state_ == State::kCall || state_ == State::kUnclosed) {
    if (is_cut && !call_->is_named()) return std::exchange(events_, {});
    break_call();
  } else if (state_ == State::kAfterCall) {
    held_.clear();  // the front of a tag, or what separates calls
    state_ = State::kContent;
  }
  finish_held(end);
  return std::exchange(events_, {});
}

void AnswerScanner::finish_held(AnswerEnd end) {
  const std::string_view front = without_leading_space(held_);
  const bool is_sure = front.size() >= kSureFront;
  const bool is_call = has_call_tags(format_.tools)
                           ? kOpenCall.starts_with(front)
                           : front.starts_with(kPythonTag.substr(0, kSureFront));
  if (end == AnswerEnd::kCut && is_sure && is_call && format_.tools != ToolFormat::kNone) {
    held_.clear();
  }
  for (const char c : std::exchange(held_, {})) write(c);
  if (state_ == State::kContent && !after_call_) emit(Kind::kContent, lines_);
}

bool AnswerScanner::finish_thought_calls() {
  std::vector<AnswerEvent> events = inner_->finish(AnswerEnd::kModel);
  if (!events.empty() || !inner_->has_call()) return false;
  for (const AnswerEvent& event : inner_events_) emit(event.kind, event.text);
  num_calls_ += inner_->num_calls_;
  return true;
}

// Texts of the same kind become one event; a text without characters becomes none.
void AnswerScanner::emit(AnswerEvent::Kind kind, std::string_view text) {
  const bool is_text = kind == Kind::kThought || kind == Kind::kContent || kind == Kind::kArguments;
  if (is_text && text.empty()) return;
  if (is_text && !events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, std::string(text)});
  }
}

}  // namespace sluice
