// Texts of the needle test: sentences with a key and a value, and questions about them.
//
// Read from a model's needle_templates.json (models/needle's card describes the format); a built-in
// set serves models without one. Thread rule: values only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace sluice::eval {

// One kind of fact. "{key}" and "{value}" in the texts are replaced.
struct NeedleKind {
  std::string name;      // "number"; not that of a built-in kind (ruler_tasks.h)
  std::string needle;    // "The secret number of the {key} is {value}."
  std::string question;  // "What is the secret number of the {key}?"
  std::string answer;    // the whole expected answer; its length limits the model's
  std::vector<std::string> keys;
  // Values are drawn from this list; if it is empty, they are numbers of value_digits digits.
  std::vector<std::string> values;
  int32_t value_digits = 0;
  // With a separator, a key has kNumSeveralValues needles, and the answer lists their values.
  std::string separator;

  int32_t num_values() const { return separator.empty() ? 1 : kNumSeveralValues; }
  static constexpr int32_t kNumSeveralValues = 3;
};

// A set of kinds with the texts that they share.
struct NeedleTemplates {
  std::vector<NeedleKind> kinds;
  std::string repeated_haystack;  // sentences for --haystack repeated
  std::string prompt;             // "{haystack}\n\n{question}"

  // Errors: kInvalidArgument listing the known kinds.
  const NeedleKind& kind(const std::string& name) const;
};

// Reads a file. Errors: kModel naming the file and the wrong key; kIo if it cannot be read.
NeedleTemplates read_needle_templates(const std::filesystem::path& path);
// The same from the text of a file; `name` is its name in error messages.
NeedleTemplates parse_needle_templates(std::string_view text, const std::string& name);
// The built-in set: one kind, "number".
NeedleTemplates default_needle_templates();

// `text` with every "{name}" replaced by `value`.
std::string fill_template(std::string text, std::string_view name, std::string_view value);

}  // namespace sluice::eval
