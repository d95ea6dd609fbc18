// AnswerScanner: splits the text of an answer, as it is generated, into thoughts, content and calls
// of tools.
//
// For programs that stream answers in the form of chat APIs. Each character is read once; what the
// events say does not depend on how the text was cut into deltas. Thread rule: one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/call_scanner.h"

namespace sluice {

// The tags around a thought.
inline constexpr std::string_view kOpenThought = "<think>", kCloseThought = "</think>";

// How a model writes calls.
enum class ToolFormat {
  kNone,
  kHermes,      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, several (Qwen)
  kLlama3Json,  // the whole answer is {"name": ..., "parameters": {...}}, perhaps after
                // <|python_tag|>
};

// "none", "hermes" or "llama3_json"; empty for other names.
std::optional<ToolFormat> find_tool_format(std::string_view name);

struct AnswerFormat {
  bool thinks = false;             // the answer may begin with <think>...</think>
  bool starts_in_thought = false;  // the prompt ends with <think>; REQUIRES: thinks
  ToolFormat tools = ToolFormat::kNone;
};

struct AnswerEvent {
  enum class Kind {
    kThought,    // text
    kContent,    // text
    kCall,       // text: the name of a tool that is called
    kArguments,  // text: the next part of the call's arguments, as the model wrote them
    kCallEnd,    // text: empty; the arguments are a complete JSON object
    kCallBroken  // text: empty; the arguments end before they are complete
  };
  Kind kind;
  std::string text;

  bool operator==(const AnswerEvent&) const = default;
};

class AnswerScanner {
 public:
  // `tools`: the names that may be called.
  AnswerScanner(AnswerFormat format, std::vector<std::string> tools);

  // Takes the next part of the answer. Neighbouring events never both have the same kind of text.
  //
  // Line ends around thoughts and calls are left out, as templates write them. A call begins once
  // its name is complete; what is not a call until then (ill-formed JSON, an unknown name) is
  // content, with its tags.
  std::vector<AnswerEvent> push(std::string_view delta);
  // The rest, at the end of the answer. REQUIRES: the last call.
  std::vector<AnswerEvent> finish();

  // Whether at least one call was complete.
  bool has_call() const { return num_calls_ > 0; }

 private:
  enum class State {
    kStart,  // nothing but white space so far
    kThought,
    kAfterThought,  // as kStart, but no thought can follow
    kContent,
    kCall,
    kAfterCall  // before </tool_call>
  };

  void take(char c);
  void take_start(char c);
  void take_tagged(char c);
  void take_call(char c);
  void take_after_call(char c);
  void begin_call(std::string source);
  // Ends a call that is not complete; one without an event becomes content.
  void break_call();
  // Goes on in another state with text that was held back.
  void retake(State state, const std::string& text);
  // The tag that ends the text of this state; empty if none does.
  std::string_view next_tag() const;
  // Content or thoughts of this state. Line ends wait where a tag may follow.
  void write(char c);
  void emit(AnswerEvent::Kind kind, std::string_view text);

  const AnswerFormat format_;
  const std::vector<std::string> tools_;
  State state_;
  std::string held_;          // the front of a tag, or white space before one
  std::string lines_;         // line ends that wait
  bool drops_lines_ = false;  // line ends are left out until something else comes
  CallScanner call_;
  int num_calls_ = 0;
  std::vector<AnswerEvent> events_;
};

}  // namespace sluice
