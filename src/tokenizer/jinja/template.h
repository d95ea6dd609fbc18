// Template: a chat template in Jinja, parsed once and rendered for any number of conversations.
//
// For programs that take conversations with tools, thoughts and parts. Text of messages never
// becomes a special token, whatever the template does with it. Thread rule: immutable.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/tokenizer.h"

namespace sluice::jinja {

inline constexpr size_t kMaxSourceBytes = size_t{256} << 10;

// The variables of a template: two JSON objects, whose members keep their order.
struct RenderInput {
  // What a client gives: messages, tools, documents. All text in it, keys and numbers too, is
  // marked as message text.
  const nlohmann::ordered_json& given;
  // What belongs to the model and the program: bos_token, add_generation_prompt. Wins where both
  // have a variable.
  const nlohmann::ordered_json& settings;
  // The local time of strftime_now, which is undefined without one.
  const std::tm* now = nullptr;
};

class Template {
 public:
  // Parses a template. Errors: kUnsupported that names the line and the construct that is wrong or
  // outside of the subset (parser.h), or the size.
  explicit Template(std::string_view source);

  // The text in segments, neighbours with different rules for special tokens.
  //
  // Gives what transformers' apply_chat_template gives for the same variables.
  // Errors: kInvalidArgument that names the line: what Python refuses, the text of
  // raise_exception, or a limit (run.h).
  std::vector<TextSegment> render(const RenderInput& input) const;

  // The variables that the template takes from outside, such as tools or enable_thinking, sorted.
  const std::vector<std::string>& reads() const { return reads_; }

 private:
  Tree tree_;
  std::vector<std::string> reads_;
};

}  // namespace sluice::jinja
