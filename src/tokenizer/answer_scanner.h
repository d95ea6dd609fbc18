// AnswerScanner: splits the text of an answer, as it is generated, into thoughts, content and calls
// of tools.
//
// For programs that stream answers in the form of chat APIs. What the events say does not depend on
// how the text was cut into deltas. A call becomes events once all of it can be read, and never
// before: clients run what they have of a call, whatever the answer's end says, so nothing but a
// whole call may leave. Its arguments come in one piece for that. Thread rule: one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/calls/call_scanner.h"

namespace sluice {

// The tags around a thought.
inline constexpr std::string_view kOpenThought = "<think>", kCloseThought = "</think>";

// How a model writes calls.
enum class ToolFormat {
  kNone,
  kHermes,      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, several (Qwen)
  kLlama3Json,  // the answer begins with {"name": ..., "parameters": {...}}, perhaps after
                // <|python_tag|>; several in a list, or with ;, a comma or white space between
  kQwen3Coder   // <tool_call><function=...><parameter=...>value</parameter></function></tool_call>,
                // several (Qwen3-Coder, Qwen3.5)
};

// Whether calls begin with <tool_call>, wherever it is in an answer.
inline bool has_call_tags(ToolFormat format) {
  return format == ToolFormat::kHermes || format == ToolFormat::kQwen3Coder;
}

// "none", "hermes", "llama3_json" or "qwen3_coder"; empty for other names.
std::optional<ToolFormat> find_tool_format(std::string_view name);

struct AnswerFormat {
  bool thinks = false;             // the answer may begin with <think>...</think>
  bool starts_in_thought = false;  // the prompt ends with <think>; REQUIRES: thinks
  ToolFormat tools = ToolFormat::kNone;
};

// Why an answer ends.
enum class AnswerEnd {
  kModel,  // the model ended it
  kCut     // a limit, a stop text of the request or a client did; the model would have gone on
};

struct AnswerEvent {
  enum class Kind {
    kThought,    // text
    kContent,    // text
    kCall,       // text: the name of a tool that is called; the next two follow it
    kArguments,  // text: all arguments of the call, a JSON object (CallScanner::arguments)
    kCallEnd     // text: empty
  };
  Kind kind;
  std::string text;

  bool operator==(const AnswerEvent&) const = default;
};

class AnswerScanner {
 public:
  // `tools`: the functions that may be called.
  AnswerScanner(AnswerFormat format, CallableTools tools);

  // Takes the next part of the answer. Neighbouring events never both have the same kind of text.
  //
  // What is no call (an unknown name, a text that CallScanner cannot read) is content as it was
  // written, with its tags. A missing last brace before </tool_call> is added. Line ends around
  // thoughts and calls are left out, as templates write them, but not those between two stretches
  // of content that have calls between them: the second begins with them.
  //
  // A call in a thought is a part of the thought, unless the model ends the answer after it and
  // does not close the thought: then the thought ended before the call. What may be such a call is
  // held back.
  std::vector<AnswerEvent> push(std::string_view delta);
  // The rest, at the end of the answer. REQUIRES: the last call.
  //
  // Of a call that was cut there is no tag: it is left out if its name is not complete. The text
  // of a longer one is content, as that of all calls that cannot be read.
  std::vector<AnswerEvent> finish(AnswerEnd end);

  // Whether there was a call.
  bool has_call() const { return num_calls_ > 0; }

 private:
  enum class State {
    kStart,  // nothing but white space so far
    kThought,
    kAfterThought,  // as kStart, but no thought can follow
    kThoughtCall,   // from <tool_call> in a thought; `tail_` has the text
    kContent,
    kCall,
    kUnclosed,  // in </tool_call> of a call that lacks its last brace
    kAfterCall  // before </tool_call>, or before the next call of Llama's
  };

  void take(char c);
  void take_start(char c);
  void take_tagged(char c);
  void take_thought_call(char c);
  void take_call(char c);
  void take_unclosed(char c);
  void take_after_call(char c);
  void take_after_llama_call(char c);
  void begin_call(std::string source);
  void end_call();
  // What looked like a call becomes content.
  void break_call();
  // The tail of a thought is a part of it.
  void keep_in_thought();
  // Ends the answer in a thought with calls at its end. False: it has none.
  bool finish_thought_calls();
  void finish_held(AnswerEnd end);
  // Goes on in another state with text that was held back.
  void retake(State state, const std::string& text);
  // Whether the text is the front of a tag that ends the text of this state.
  bool may_be_tag(std::string_view text) const;
  // Whether a tag may follow line ends in this state.
  bool has_tags() const;
  // Content or thoughts of this state. Line ends wait where a tag may follow.
  void write(char c);
  void emit(AnswerEvent::Kind kind, std::string_view text);

  const AnswerFormat format_;
  const CallableTools tools_;
  State state_;
  std::string held_;          // the front of a tag, or white space before one
  std::string lines_;         // line ends that wait
  bool drops_lines_ = false;  // line ends are left out until something else comes
  bool in_list_ = false;      // in the list of calls of a Llama model
  bool has_content_ = false;
  bool after_call_ = false;  // no content has come after the last call
  std::unique_ptr<CallReader> call_;
  int num_calls_ = 0;
  std::vector<AnswerEvent> events_;

  std::string tail_;
  std::unique_ptr<AnswerScanner> inner_;  // reads the tail as content
  std::vector<AnswerEvent> inner_events_;
  bool keeps_tail_ = false;  // a thought's text is taken again; calls in it are no calls
};

}  // namespace sluice
