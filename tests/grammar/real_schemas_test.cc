// Schemas as agents and their libraries send them: each is accepted, allows what it should, and
// compiles soon for a large vocabulary.
#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"
#include "grammar/structure_rules.h"
#include "io/file.h"
#include "io/json_type.h"
#include "support/sanitizer.h"
#include "support/source_dir.h"

namespace sluice {
namespace {

// Texts keep their order, as those of a client do.
std::vector<nlohmann::ordered_json> schemas() {
  const auto all = nlohmann::ordered_json::parse(
      read_file(testing::source_dir() / "tests/grammar/real_schemas.json"));
  return {all.begin(), all.end()};
}

// As many tokens as a model has: pieces of the schemas, and numbers.
std::vector<std::string> many_tokens(size_t count) {
  const std::string text = read_file(testing::source_dir() / "tests/grammar/real_schemas.json");
  std::set<std::string> tokens;
  for (size_t length = 2; length <= 12 && tokens.size() < count; ++length) {
    for (size_t i = 0; i + length <= text.size() && tokens.size() < count; ++i) {
      tokens.insert(text.substr(i, length));
    }
  }
  for (int i = 0; tokens.size() < count; ++i)
    tokens.insert(fmt::format("{}{}", i % 3 ? " " : "", i));
  return {tokens.begin(), tokens.end()};
}

TEST(RealSchemas, AllowWhatTheyShould) {
  const auto vocabulary = std::make_shared<const Vocabulary>(byte_tokens());
  for (const auto& one : schemas()) {
    const auto grammar = std::make_shared<const Grammar>(
        structure_rules({.kind = StructureKind::kJsonSchema, .text = one["schema"].dump()}).rules,
        vocabulary);
    for (const auto& document : one["valid"]) {
      EXPECT_TRUE(accepts(*grammar, document.dump())) << one["name"] << document;
    }
    for (const auto& document : one["invalid"]) {
      EXPECT_FALSE(accepts(*grammar, document.dump())) << one["name"] << document;
    }
  }
}

// Prints the times. The bound is for a busy machine.
TEST(RealSchemas, CompileSoonForALargeVocabulary) {
  const auto vocabulary =
      std::make_shared<const Vocabulary>(byte_tokens(many_tokens(kSanitized ? 5000 : 150'000)));
  for (const auto& one : schemas()) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string rules =
        structure_rules({.kind = StructureKind::kJsonSchema, .text = one["schema"].dump()}).rules;
    const std::chrono::duration<double> read = std::chrono::steady_clock::now() - begin;
    const auto grammar = std::make_shared<const Grammar>(rules, vocabulary);
    const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
    fmt::print("{:7.1f} ms to read, {:7.1f} ms to compile, {:6.1f} MiB: {}\n", read.count() * 1e3,
               (all - read).count() * 1e3, static_cast<double>(grammar->num_bytes()) / (1 << 20),
               one["name"].get<std::string>());
    EXPECT_LT(all.count(), 60) << one["name"];
  }
}

}  // namespace
}  // namespace sluice
