// CallReader: reads one call of a tool, as it arrives. CallScanner reads those that are JSON.
//
// Used by AnswerScanner. Thread rule: one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tokenizer/calls/json_cursor.h"

namespace sluice {

// A function that may be called. Formats that write values without quotes need the types of its
// parameters: `parameters` is its schema; null if that is not known.
struct CallableTool {
  CallableTool(std::string tool_name,
               std::shared_ptr<const nlohmann::ordered_json> schema = nullptr)
      : name(std::move(tool_name)), parameters(std::move(schema)) {}
  CallableTool(const char* tool_name) : CallableTool(std::string(tool_name)) {}

  std::string name;
  std::shared_ptr<const nlohmann::ordered_json> parameters;
};

using CallableTools = std::vector<CallableTool>;

// Null if there is none of this name.
const CallableTool* find_tool(const CallableTools& tools, std::string_view name);

class CallReader {
 public:
  // What a character has shown.
  enum class Step {
    kMore,    // the call goes on
    kEnd,     // the call is complete
    kRefused  // it is not a call, and the character is not a part of it
  };

  virtual ~CallReader() = default;
  // `source`: the text before the call, such as a tag.
  virtual void reset(std::string source) = 0;
  // Takes the next character. The name of a call is one of `tools`.
  virtual Step take(char c, const CallableTools& tools) = 0;
  // Whether nothing but a brace at its end is missing: the arguments are complete.
  virtual bool lacks_brace() const { return false; }

  // Whether the name is complete, and the name.
  bool is_named() const { return !name_.empty(); }
  const std::string& name() const { return name_; }
  // The text of a JSON object that parse_ordered_json takes. Order: after kEnd.
  const std::string& arguments() const { return arguments_; }
  // All text so far, with that before the call.
  const std::string& source() const { return source_; }

 protected:
  std::string source_;
  std::string name_;
  std::string arguments_;
};

// Reads an object with the members name and arguments or parameters: an object, null, or the text
// of an object. Arguments are what the model wrote, but for control characters inside of texts,
// which are escaped; "{}" if there were none.
class CallScanner : public CallReader {
 public:
  void reset(std::string source) override;
  Step take(char c, const CallableTools& tools) override;
  bool lacks_brace() const override;

 private:
  enum class Member { kOther, kName, kArguments };

  // Note what the character that the cursor has just taken belongs to. False: not a call.
  bool take_key(char c);
  bool take_value(char c, const CallableTools& tools);
  bool finish_name(const CallableTools& tools);
  // Makes the arguments readable. False: they are not.
  bool finish_arguments();

  JsonCursor cursor_{JsonCursor::Texts::kWithControls};
  std::string key_;    // with its quotes
  std::string value_;  // of the name, with its quotes
  Member member_ = Member::kOther;
  bool in_value_ = false;
  bool has_name_ = false;
  bool has_arguments_ = false;
};

}  // namespace sluice
