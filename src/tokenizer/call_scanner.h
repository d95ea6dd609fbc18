// CallScanner: reads the JSON object of one call of a tool, as it arrives.
//
// Used by AnswerScanner. Thread rule: one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_cursor.h"

namespace sluice {

class CallScanner {
 public:
  // What a character has shown.
  enum class Step {
    kMore,    // the call goes on; arguments() has its new part
    kNamed,   // the name is complete and known; arguments() has what came before it
    kEnd,     // the object is complete
    kRefused  // it is not a call, and the character is not a part of it
  };

  // `source`: the text before the object, such as a tag.
  void reset(std::string source);
  // Takes the next character. The names of the members are name, and arguments or parameters.
  Step take(char c, const std::vector<std::string>& tools);

  bool is_named() const { return !name_.empty(); }
  const std::string& name() const { return name_; }
  // Takes the part of the arguments that has not been taken. At the end, "{}" if there were none.
  std::string take_arguments();
  // All text so far that is not in a named call.
  const std::string& source() const { return source_; }

 private:
  enum class Member { kOther, kName, kArguments };

  // Note what the character that the cursor has just taken belongs to. False: not a call.
  bool take_key(char c);
  bool take_value(char c, const std::vector<std::string>& tools);
  bool finish_name(const std::vector<std::string>& tools);

  JsonCursor cursor_;
  std::string source_;
  std::string key_;    // with its quotes
  std::string value_;  // of the name, with its quotes
  Member member_ = Member::kOther;
  bool in_value_ = false;
  bool has_name_ = false;
  bool has_arguments_ = false;
  bool null_arguments_ = false;
  std::string name_;
  std::string arguments_;  // not taken yet
};

}  // namespace sluice
