// FunctionScanner: reads one call that is written with tags, as it arrives.
//
// Used by AnswerScanner for models that write calls as Qwen3-Coder does. Thread rule: one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/calls/call_scanner.h"

namespace sluice {

// Reads <function=name>, <parameter=key>value</parameter> any number of times, </function>; white
// space may stand between tags. A value is without the line end after its first tag and that before
// its last; io/schema_types.h says what it means. A closing tag in a text of a list or object
// belongs to that. What has a parameter twice is not a call.
class FunctionScanner : public CallReader {
 public:
  void reset(std::string source) override;
  Step take(char c, const CallableTools& tools) override;

 private:
  enum class State {
    kOpen,  // before the name: in <function=
    kName,
    kBetween,  // in <parameter= or </function>
    kKey,
    kValue
  };

  // False: not a call.
  bool take_open(char c);
  bool take_name(char c, const CallableTools& tools);
  bool take_key(char c);
  bool take_value(char c);
  // kEnd after the last tag.
  Step take_between(char c);
  bool finish_value();

  State state_ = State::kOpen;
  std::string held_;  // the front of a tag, a name or a key
  std::vector<std::string> keys_;
  std::string value_;
  std::shared_ptr<const nlohmann::ordered_json> schema_;  // of the function; may be null
  unsigned types_ = 0;                                    // of the value
  std::optional<JsonCursor> cursor_;  // while the value is the front of a list or object
};

}  // namespace sluice
