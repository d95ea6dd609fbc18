// A file of options, for --config: a mapping in YAML of names to values.
//
// Used by option_set.cc. Thread rule: pure functions but for the file.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

// "served-model-name: [a, b]".
struct ConfigEntry {
  std::string name;                 // without dashes before it, '_' as '-'
  std::vector<std::string> values;  // as a command line has them; several of a list
};

// All entries in the order of the file; null and an empty list have no values.
//
// Errors: kInvalidArgument naming file and line: it cannot be read, is no YAML or no mapping, a
// name occurs twice, a value is a mapping.
// Values are texts, read as those of a command line, so that both have one set of rules: "32K" is a
// number of tokens, and true is 1.
std::vector<ConfigEntry> read_config_file(const std::string& path);

}  // namespace sluice::cli
