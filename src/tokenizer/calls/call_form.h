// How models write calls of tools, for those that read calls and for grammars of calls.
//
// One place for both, since a call that is forced and not read would be an answer of nothing. A new
// format needs a form here, a reader in AnswerScanner, and a row in tests/grammar/calls_test.cc.
//
// Used by AnswerScanner and by programs that ask for calls. Thread rule: a free function.
#pragma once

#include <string_view>

#include "sluice/structured_output.h"
#include "tokenizer/answer_scanner.h"

namespace sluice {

inline constexpr std::string_view kOpenCall = "<tool_call>", kCloseCall = "</tool_call>";
inline constexpr std::string_view kOpenFunction = "<function=", kCloseFunction = "</function>";
inline constexpr std::string_view kOpenParameter = "<parameter=", kCloseParameter = "</parameter>";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";

// As the templates of these models write calls; an AnswerScanner of the format reads every call of
// this form, and none in texts without its marker or opening. REQUIRES: not kNone.
CallForm call_form(ToolFormat format);

}  // namespace sluice
