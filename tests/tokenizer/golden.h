// Reads tests/golden/tokenizer/, which tools/golden/make_tokenizer_golden.py writes.
//
// Used by the golden tests. Thread rule: free functions without state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "io/json_type.h"
#include "support/source_dir.h"

namespace sluice::testing {

inline std::filesystem::path golden_dir() { return source_dir() / "tests/golden/tokenizer"; }

inline nlohmann::json golden_json(const std::filesystem::path& name) {
  std::ifstream stream(golden_dir() / name);
  return nlohmann::json::parse(stream);
}

inline std::string golden_text(const std::filesystem::path& name) {
  std::ifstream stream(golden_dir() / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The texts that all families encode: first those written out, then those given as a unit and its
// number of repetitions.
inline std::vector<std::string> golden_strings() {
  const nlohmann::json document = golden_json("strings.json");
  auto texts = document.at("strings").get<std::vector<std::string>>();
  for (const auto& run : document.at("runs")) {
    std::string text;
    for (int i = 0; i < run.at(1).get<int>(); ++i) text += run.at(0).get<std::string>();
    texts.push_back(text);
  }
  return texts;
}

// "5 9*300 7" as 5, 300 times 9, 7.
inline std::vector<int32_t> golden_ids(const std::string& text) {
  std::vector<int32_t> ids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t star = word.find('*');
    const size_t count = star == word.npos ? 1 : std::stoul(word.substr(star + 1));
    ids.insert(ids.end(), count, std::stoi(word));
  }
  return ids;
}

}  // namespace sluice::testing
