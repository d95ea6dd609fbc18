// In place of xgrammar_library.cc where xgrammar is not there.
#include "core/error.h"
#include "grammar/grammar.h"

namespace sluice {
namespace {

[[noreturn]] void fail_absent() {
  fail(ErrorCode::kUnsupported,
       "this build has no structured output, because xgrammar was not there: run "
       "tools/build_xgrammar.sh and build again");
}

}  // namespace

bool has_grammar_library() { return false; }

std::unique_ptr<GrammarLibrary> make_grammar_library(const TokenTable& /*table*/) { fail_absent(); }

void check_rules(const std::string& /*rules*/) { fail_absent(); }

}  // namespace sluice
