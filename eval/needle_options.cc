// Words, help and checks of the options of a needle test.
#include "eval/needle_options.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/options/check_parts.h"
#include "cli/options/option_groups.h"
#include "cli/options/option_rows.h"
#include "core/error.h"
#include "eval/ruler_tasks.h"

namespace sluice::eval {

using namespace cli;  // readers and rows of options

namespace {

// --max-tokens of needle: another default than that of run, so a row of its own.
constexpr OptionFacts kAnswerTokens = {.name = "max_tokens",
                                       .flags = "-n,--max-tokens",
                                       .kind = OptionKind::kTokens,
                                       .min = 1,
                                       .max = kMaxInt32,
                                       .unset_from = 0,
                                       .when_unset = "the expected one and 8 more",
                                       .help = "longest answer"};

// Refuses options of texts and depths that no kind of the list uses.
void check_kinds(NeedleCommand* needle, const Given& given) {
  const std::string kinds = fmt::format("{}", fmt::join(needle->kinds, ","));
  bool has_haystack = false, has_templates = false;
  for (const std::string& kind : needle->kinds) {
    if (std::count(needle->kinds.begin(), needle->kinds.end(), kind) > 1) {
      fail(ErrorCode::kInvalidArgument, "--kind: '{}' is given twice; leave one out", kind);
    }
    const std::unique_ptr<NeedleTask> task = make_ruler_task(kind);
    has_haystack = has_haystack || !task || task->has_haystack();
    has_templates = has_templates || !task;
  }
  if (!has_haystack) {
    refuse_given(given, {"--depths", "--haystack", "--templates"},
                 fmt::format("--kind {} has a text of its own and no depths", kinds));
    needle->depths = {0};
  } else if (!has_templates && needle->haystack != "repeated") {
    refuse_given(given, {"--templates"},
                 fmt::format("--kind {} has facts and questions of its own", kinds));
  }
}

}  // namespace

// Each list option replaces the default of its list.
void declare(OptionSet& set, NeedleCommand* needle) {
  set.group("Grid");
  set.value("--lengths", "LIST", "tokens of the prompts (1K,2K,4K)",
            [=](std::string_view source, std::string_view value) {
              needle->lengths.clear();
              for (const std::string& item : split_list(source, value)) {
                needle->lengths.push_back(parse_token_count(source, item, 64, kMaxTokens));
              }
            });
  set.value("--depths", "LIST", "where the needle is, in percent of the text (0,25,50,75,100)",
            [=](std::string_view source, std::string_view value) {
              needle->depths.clear();
              for (const std::string& item : split_list(source, value)) {
                needle->depths.push_back(static_cast<int32_t>(parse_integer(source, item, 0, 100)));
              }
            });
  set.integer("--needles", "fresh needles for each length and depth (4)", &needle->needles, 1,
              100000);
  declare_policies(set, "of --sparse-policy, compared with full in a table", &needle->policies);
  declare_seed(set, &needle->engine);
  set.group("Text");
  add_option(set, kChatTemplateRow, &needle->engine);
  set.value("--kind", "LIST",
            "kinds of needles in needle_templates.json, or RULER tasks: multikey, multivalue, vt, "
            "cwe, fwe (number)",
            [=](std::string_view source, std::string_view value) {
              needle->kinds = split_list(source, value);
            });
  set.text("--haystack", "FILE", "text to hide it in, or 'repeated' (DIR/haystack.txt)",
           &needle->haystack);
  set.text("--templates", "FILE", "needles and questions (DIR/needle_templates.json)",
           &needle->templates);
  add_option(set, kAnswerTokens, [=](const std::optional<OptionValue>& value) {
    needle->max_tokens.reset();
    if (value) needle->max_tokens = static_cast<int32_t>(std::get<int64_t>(*value));
  });
  set.group("Output");
  set.text("-o,--out", "DIR", "where needle.json, .html, .svg and .png go (needle-results)",
           &needle->out);
  set.set_flag("--save-prompts", "also write prompts.jsonl: every prompt as text and token ids",
               &needle->save_prompts);
  set.set_flag("-v,--verbose", "show every answer", &needle->verbose);
  declare_engine(set, &needle->engine);
  declare_kept(set, &needle->engine);
  declare_gpu_lock(set, &needle->gpu_lock);
}

// Sorts the axes of the grid and removes repeated values. A task that makes its own text has one
// row, at depth 0; an option that none of the kinds uses is refused.
void check(NeedleCommand* needle, const Given& given) {
  check_engine(needle->engine, given);
  needle->kind = needle->kinds.front();
  if (!needle->policies.empty()) {
    refuse_given(given, {"--sparse-policy"}, "--policies names them; leave one of them out");
    check_policies(needle->policies, needle->engine.sparse, given);
  }
  check_kinds(needle, given);
  const auto sort_unique = [](auto* list) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  };
  sort_unique(&needle->lengths);
  sort_unique(&needle->depths);
}

}  // namespace sluice::eval
