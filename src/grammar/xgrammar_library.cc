// xgrammar behind the contract. Its messages become errors, or nothing where they are warnings.
#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include <xgrammar/xgrammar.h>

#include "core/error.h"
#include "grammar/grammar.h"

namespace xgrammar {

// What xgrammar calls with its failures, since it is compiled with XGRAMMAR_LOG_CUSTOMIZE.
[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*line*/,
                               const std::string& message) {
  throw sluice::Error(sluice::ErrorCode::kInvalidArgument, message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int /*level*/,
                    const std::string& /*message*/) {}

}  // namespace xgrammar

namespace sluice {
namespace {

constexpr int kMaxThreads = 4;  // of one compilation

// The mask is written where the caller has it; xgrammar takes a description of that memory.
class XgrammarMatcher final : public Matcher {
 public:
  explicit XgrammarMatcher(const xgrammar::CompiledGrammar& grammar) : matcher_(grammar) {}

  void fill_mask(std::span<int32_t> words) override {
    int64_t shape[] = {static_cast<int64_t>(words.size())};
    DLTensor tensor{.data = words.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = xgrammar::GetBitmaskDLType(),
                    .shape = shape,
                    .strides = nullptr,
                    .byte_offset = 0};
    matcher_.FillNextTokenBitmask(&tensor);
  }
  bool accept(int32_t token_id) override { return matcher_.AcceptToken(token_id); }
  void rollback(int64_t num_tokens) override {
    if (num_tokens > 0) matcher_.Rollback(static_cast<int>(num_tokens));
  }
  bool is_complete() const override { return matcher_.IsCompleted(); }
  bool has_ended() const override { return matcher_.IsTerminated(); }

 private:
  xgrammar::GrammarMatcher matcher_;
};

class XgrammarGrammar final : public Grammar {
 public:
  explicit XgrammarGrammar(xgrammar::CompiledGrammar grammar) : grammar_(std::move(grammar)) {}
  std::unique_ptr<Matcher> make_matcher() const override {
    return std::make_unique<XgrammarMatcher>(grammar_);
  }
  size_t num_bytes() const override { return grammar_.MemorySizeBytes(); }

 private:
  xgrammar::CompiledGrammar grammar_;
};

// What it throws of its own says what is wrong with the text, too.
template <typename Call>
auto translated(const Call& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInvalidArgument, std::string("grammar: ") + error.what());
  }
}

// Tokens without a text, and so special ones and padding, are in no mask.
class XgrammarLibrary final : public GrammarLibrary {
 public:
  explicit XgrammarLibrary(const TokenTable& table)
      : compiler_(xgrammar::TokenizerInfo(table.bytes, xgrammar::VocabType::RAW,
                                          static_cast<int>(table.bytes.size()), table.end_ids),
                  num_threads(), false) {}

  std::shared_ptr<const Grammar> compile(const std::string& rules) override {
    return translated([&]() -> std::shared_ptr<const Grammar> {
      return std::make_shared<XgrammarGrammar>(
          compiler_.CompileGrammar(xgrammar::Grammar::FromEBNF(rules)));
    });
  }

 private:
  static int num_threads() {
    const auto num_cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(num_cores / 2, 1, kMaxThreads);
  }

  xgrammar::GrammarCompiler compiler_;
};

}  // namespace

bool has_grammar_library() { return true; }

std::unique_ptr<GrammarLibrary> make_grammar_library(const TokenTable& table) {
  return std::make_unique<XgrammarLibrary>(table);
}

void check_rules(const std::string& rules) {
  translated([&] { return xgrammar::Grammar::FromEBNF(rules); });
}

}  // namespace sluice
