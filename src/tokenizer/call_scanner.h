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
    kMore,    // the call goes on
    kEnd,     // the object is complete, and a call
    kRefused  // it is not a call, and the character is not a part of it
  };

  // `source`: the text before the object, such as a tag.
  void reset(std::string source);
  // Takes the next character. The names of the members are name, which is one of `tools`, and
  // arguments or parameters: an object, null, or the text of an object.
  Step take(char c, const std::vector<std::string>& tools);

  // Whether the name is complete, and the name.
  bool is_named() const { return !name_.empty(); }
  const std::string& name() const { return name_; }
  // Whether nothing but the brace that ends the object is missing: the arguments are complete.
  bool lacks_brace() const;
  // The text of a JSON object that parse_ordered_json takes. It is what the model wrote, but for
  // control characters inside of texts, which are escaped; "{}" if there were none.
  // Order: after kEnd.
  const std::string& arguments() const { return arguments_; }
  // All text so far, with that before the object.
  const std::string& source() const { return source_; }

 private:
  enum class Member { kOther, kName, kArguments };

  // Note what the character that the cursor has just taken belongs to. False: not a call.
  bool take_key(char c);
  bool take_value(char c, const std::vector<std::string>& tools);
  bool finish_name(const std::vector<std::string>& tools);
  // Makes the arguments readable. False: they are not.
  bool finish_arguments();

  JsonCursor cursor_{JsonCursor::Texts::kWithControls};
  std::string source_;
  std::string key_;    // with its quotes
  std::string value_;  // of the name, with its quotes
  Member member_ = Member::kOther;
  bool in_value_ = false;
  bool has_name_ = false;
  bool has_arguments_ = false;
  std::string name_;
  std::string arguments_;  // as they were written, until the end
};

}  // namespace sluice
