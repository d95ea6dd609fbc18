// What is hidden and asked in the needle test: sentences with a key and a value, and questions.
//
// Read from needle_templates.json of a model (the format is described in models/needle's card); a
// built-in set serves models without one. Thread rule: values only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::cli {

// One kind of fact. "{key}" and "{value}" in the texts are replaced.
struct NeedleKind {
  std::string name;      // "number"
  std::string needle;    // "The secret number of the {key} is {value}."
  std::string question;  // "What is the secret number of the {key}?"
  std::string answer;    // the whole answer expected, for its length in tokens
  std::vector<std::string> keys;
  // Values are drawn from the list, or are numbers of so many digits when the list is empty.
  std::vector<std::string> values;
  int32_t value_digits = 0;
  // With a separator, one key gets kNumSeveralValues needles and the answer lists their values.
  std::string separator;

  int32_t num_values() const { return separator.empty() ? 1 : kNumSeveralValues; }
  static constexpr int32_t kNumSeveralValues = 3;
};

struct NeedleTemplates {
  std::vector<NeedleKind> kinds;
  std::string repeated_haystack;  // sentences for --haystack repeated
  std::string prompt;             // "{haystack}\n\n{question}"

  // Errors: kInvalidArgument listing the kinds there are.
  const NeedleKind& kind(const std::string& name) const;
};

// Errors: kModel naming the file and the key that is wrong; kIo when it cannot be read.
NeedleTemplates read_needle_templates(const std::filesystem::path& path);
// The same from the text of a file; `name` opens error texts.
NeedleTemplates parse_needle_templates(std::string_view text, const std::string& name);
NeedleTemplates default_needle_templates();

// `text` with every "{name}" replaced by `value`.
std::string fill_template(std::string text, std::string_view name, std::string_view value);

}  // namespace sluice::cli
