// JsonCursor: checks a JSON value character by character, as it arrives.
//
// Used by CallScanner. Memory: one byte for each open object or list. Thread rule: one thread.
#pragma once

#include <string_view>
#include <vector>

namespace sluice {

// Objects and lists nested deeper than this are refused, as in io/json.h.
inline constexpr size_t kMaxCursorDepth = 64;

class JsonCursor {
 public:
  enum class State {
    kValue,      // a value is expected
    kFirstItem,  // a value or ]
    kFirstKey,   // a key or }
    kKey,        // a key
    kKeyText,    // inside of a key
    kColon,
    kText,  // inside of a text value
    kNumber,
    kLiteral,     // inside of true, false or null
    kAfterValue,  // a comma or the end of the object or list; white space alone at depth 0
  };

  // What the texts in it may have.
  enum class Texts {
    kStrict,       // what RFC 8259 allows
    kWithControls  // also control characters as they are, line ends for example
  };

  explicit JsonCursor(Texts texts = Texts::kStrict) : texts_(texts) {}

  // Takes the next byte. False: the text so far is not the front of a JSON text; the cursor must
  // not be used any more. Keys given twice and ill-formed UTF-8 are not found.
  bool take(char c);

  State state() const { return state_; }
  size_t depth() const { return open_.size(); }

 private:
  enum class Number { kMinus, kZero, kInteger, kPoint, kFraction, kE, kSign, kExponent };

  bool begin_value(char c);
  bool take_text(char c);
  bool take_number(char c);
  bool is_whole_number() const;
  bool take_after_value(char c);
  bool open(char c);
  void close();

  Texts texts_;
  State state_ = State::kValue;
  std::vector<char> open_;  // { and [
  int escape_ = 0;  // of a text: 1 after a backslash, 2 to 5 before that many minus 1 hex digits
  Number number_ = Number::kMinus;
  std::string_view literal_;  // what is left of it
};

}  // namespace sluice
