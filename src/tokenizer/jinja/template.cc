// Defines the variables and turns the marked text into segments.
#include "tokenizer/jinja/template.h"

#include "core/error.h"
#include "io/json_type.h"
#include "tokenizer/jinja/free_names.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"

namespace sluice::jinja {
namespace {

Tree parse_checked(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    fail(ErrorCode::kUnsupported, "the chat template has {} bytes; at most {} are supported",
         source.size(), kMaxSourceBytes);
  }
  return parse(source);
}

}  // namespace

Template::Template(std::string_view source)
    : tree_(parse_checked(source)), reads_(free_names(tree_)) {}

std::vector<TextSegment> Template::render(const RenderInput& input) const {
  Run run;
  Interpreter interpreter(tree_, run, input.now);
  size_t num_bytes = 0;
  const auto define = [&](const nlohmann::ordered_json& variables, bool given) {
    for (const auto& [name, value] : variables.items()) {
      interpreter.define(name, from_json(value, given, num_bytes));
    }
  };
  define(input.given, true);
  define(input.settings, false);
  run.max_text_bytes = kOutputPerInput * num_bytes + kMinOutputLimit;
  const MarkedText text = interpreter.render();
  std::vector<TextSegment> segments;
  text.for_each_run(0, text.size(), [&](std::string_view bytes, bool given) {
    segments.push_back({std::string(bytes), !given});
  });
  return segments;
}

}  // namespace sluice::jinja
