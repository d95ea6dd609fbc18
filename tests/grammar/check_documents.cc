// check_documents: whether documents are what a schema allows, as a filter.
//
// Used by tools/schema_suite.py and schema_judge.py. Each line of stdin is {"schema": text,
// "documents": [texts]}; for each it prints {"valid": [booleans]} or {"error": text}. Masks are
// compared with what is accepted on the way. Thread rule: one thread.
#include <iostream>
#include <string>
#include <vector>

#include "core/error.h"
#include "grammar/byte_tokens.h"
#include "grammar/structure_rules.h"
#include "io/json_type.h"

namespace sluice {
namespace {

bool is_valid(const Grammar& grammar, const std::string& document, size_t num_tokens) {
  const auto matcher = grammar.make_matcher();
  std::vector<int32_t> words((num_tokens + 31) / 32);
  const auto may_come = [&](int32_t id) {
    matcher->fill_mask(words);
    return (words[static_cast<size_t>(id / 32)] >> (id % 32) & 1) != 0;
  };
  for (const char c : document) {
    const int32_t id = static_cast<unsigned char>(c);
    const bool is_allowed = may_come(id);
    SLUICE_CHECK(matcher->accept(id) == is_allowed, "document {}", document);
    if (!is_allowed) return false;
  }
  SLUICE_CHECK(may_come(kEndToken) == matcher->is_complete(), "document {}", document);
  return matcher->is_complete();
}

nlohmann::json answer(const std::shared_ptr<const Vocabulary>& vocabulary,
                      const nlohmann::json& line, size_t num_tokens) {
  try {
    const auto grammar = std::make_shared<const Grammar>(
        structure_rules({.kind = StructureKind::kJsonSchema, .text = line.at("schema")}).rules,
        vocabulary);
    nlohmann::json valid = nlohmann::json::array();
    for (const auto& document : line.at("documents")) {
      valid.push_back(is_valid(*grammar, document, num_tokens));
    }
    return {{"valid", valid}};
  } catch (const Error& error) {
    return {{"error", error.message()}};
  }
}

void check_documents() {
  const TokenTable table = byte_tokens();
  const auto vocabulary = std::make_shared<const Vocabulary>(table);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << answer(vocabulary, nlohmann::json::parse(line), table.bytes.size()).dump() << '\n';
  }
}

}  // namespace
}  // namespace sluice

int main() {
  try {
    sluice::check_documents();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
