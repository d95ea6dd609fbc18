// The blanks are those that models of a format are trained with. The readers take others, too, but
// a model that is forced away from its habits writes worse arguments.
#include "tokenizer/calls/call_form.h"

#include "core/error.h"

namespace sluice {

CallForm call_form(ToolFormat format) {
  SLUICE_CHECK(format != ToolFormat::kNone);
  if (format == ToolFormat::kHermes) {
    return {.begin = R"(<tool_call>
{"name": )",
            .middle = R"(, "arguments": )",
            .end = "}\n</tool_call>",
            .between = "\n",
            .marker = std::string(kOpenCall)};
  }
  if (format == ToolFormat::kQwen3Coder) {
    return {.begin = "<tool_call>\n<function=",
            .middle = ">\n",
            .end = "</function>\n</tool_call>",
            .between = "\n",
            .marker = std::string(kOpenCall),
            .parameters = ParameterForm{.begin = std::string(kOpenParameter),
                                        .middle = ">\n",
                                        .end = '\n' + std::string(kCloseParameter) + '\n',
                                        .mark = std::string(kCloseParameter)}};
  }
  // What begins as <|python_tag|> does counts as a call, too: no answer does, and each character of
  // the rest takes time to compile.
  return {.begin = R"({"name": )",
          .middle = R"(, "parameters": )",
          .end = "}",
          .between = "; ",
          .opening = R"(^[ \t\r\n]*(<\|p|(\[[ \t\r\n]*)?\{))"};
}

}  // namespace sluice
