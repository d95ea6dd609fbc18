// Texts that are hard for a tokenizer: a megabyte of one pattern. They reveal quadratic time, which
// would take hours. The bound is wide because it also holds under sanitizers and on busy machines.
#include <ctime>
#include <string>

#include <gtest/gtest.h>

#include "tokenizer/golden.h"
#include "tokenizer/tokenizer.h"

namespace sluice {
namespace {

constexpr size_t kBytes = 1000000;
constexpr double kMaxSeconds = 20;

std::string repeated(const std::string& unit) {
  std::string text;
  while (text.size() < kBytes) text += unit;
  return text;
}

std::string scattered_letters() {
  std::string text;
  uint32_t state = 1;
  while (text.size() < kBytes) {
    state = state * 1664525u + 1013904223u;
    text += static_cast<char>('a' + (state >> 24) % 26);
  }
  return text;
}

class HostileText : public ::testing::TestWithParam<const char*> {};

TEST_P(HostileText, TakesLinearTime) {
  const Tokenizer tokenizer = Tokenizer::load(testing::golden_dir() / GetParam());
  const std::string texts[] = {repeated("a"),
                               repeated(" "),
                               repeated("\n "),
                               repeated("<"),
                               repeated("<|im_"),
                               repeated("\u0301\u0316"),
                               repeated("\u1100\u1161"),
                               repeated("'"),
                               repeated("1"),
                               repeated("[LR]   "),
                               repeated("\u4e2d"),
                               repeated("the"),
                               repeated("<|im_end|>"),
                               scattered_letters(),
                               repeated("\xFF")};
  for (const std::string& text : texts) {
    const std::clock_t start = std::clock();
    const auto ids = tokenizer.encode(text, {.parse_special = true});
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    EXPECT_LT(seconds, kMaxSeconds) << text.substr(0, 20);
    EXPECT_FALSE(ids.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HostileText,
                         ::testing::Values("gpt2", "qwen", "qwen35", "llama3", "smollm2", "odd"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace sluice
