// The table, and the filters of texts. Source: jinja2's filters.py; tojson from transformers.
#include "tokenizer/jinja/filters.h"

#include <algorithm>
#include <array>

#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/text/text_format.h"
#include "tokenizer/jinja/text/text_methods.h"

namespace sluice::jinja {
namespace {

MarkedText input_text(const FilterCall& call) { return to_text(call.run, call.input); }

// Without the characters of `chars`, or white space, at both ends.
Value filter_trim(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"chars"});
  const MarkedText text = input_text(call);
  call.run.spend_text(text.size());
  return strip(text, Side::kBoth, parameters.find_text(0));
}

// The value as {{ }} writes it.
Value filter_string(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  return input_text(call);
}

// upper, lower, title and capitalize. title begins a word after each character that jinja2 takes
// for a border, which differs from the method of the same name.
Value filter_case(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  return change_case(call.run, input_text(call),
                     call.name == "upper"   ? Case::kUpper
                     : call.name == "lower" ? Case::kLower
                     : call.name == "title" ? Case::kJinjaTitle
                                            : Case::kCapital);
}

// The first `count` occurrences; all of them if it is negative.
Value filter_replace(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"old", "new", "count"});
  return replace(call.run, input_text(call), to_text(call.run, parameters.need(0)),
                 to_text(call.run, parameters.need(1)), parameters.integer(2, -1));
}

// "%s"|format(x): the text % a tuple of the arguments, or % a dict of the named ones.
Value filter_format(const FilterCall& call) {
  if (!call.args.positional.empty() && !call.args.named.empty()) {
    call.run.fail("format takes arguments with names or without, not both");
  }
  if (call.args.named.empty()) {
    return format_percent(call.run, input_text(call),
                          make_list(call.run, call.args.positional, List::Kind::kTuple));
  }
  std::vector<std::pair<Value::Text, Value>> named;
  for (const auto& [name, value] : call.args.named) {
    named.emplace_back(name_text(call.run, call.args, name), value);
  }
  return format_percent(call.run, input_text(call), make_dict(call.run, std::move(named)));
}

// length and count. An undefined value has the length 0, as in jinja2.
Value filter_length(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  if (const MarkedText* text = call.input.text()) return num_characters(text->bytes());
  const List* list = call.input.list();
  if (list && list->kind != List::Kind::kGenerator) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = call.input.dict()) return static_cast<int64_t>(dict->items.size());
  if (!call.input.is_undefined()) call.run.fail("{} has no length", call.input.type_name());
  return int64_t{0};
}

// The items, or an attribute of each, with `d` between them.
Value filter_join(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"d", "attribute"});
  std::vector<Value> items = elements(call.run, call.input);
  if (const Value* attribute = parameters.find(1); attribute && !attribute->is_none()) {
    for (Value& item : items) item = find_path(call.run, item, *attribute);
  }
  const MarkedText separator =
      parameters.find(0) ? to_text(call.run, *parameters.find(0)) : MarkedText();
  return join(call.run, items, separator);
}

// default and d: another value for an undefined one; with `boolean` also for one that is false.
Value filter_default(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"default_value", "boolean"});
  const bool replaces =
      call.input.is_undefined() || (parameters.flag(1, false) && !call.input.truth());
  if (!replaces) return call.input;
  return parameters.find(0) ? *parameters.find(0) : make_text("");
}

// `width` spaces, or the text `width`, before each line but the first and, unless told, empty ones.
Value filter_indent(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {"width", "first", "blank"});
  const Value* width = parameters.find(0);
  MarkedText indentation;
  if (width && width->is_text()) {
    indentation = *width->text();
  } else {
    const int64_t spaces = std::clamp<int64_t>(parameters.integer(0, 4), 0, kMaxRange);
    indentation = MarkedText(std::string(static_cast<size_t>(spaces), ' '), false);
  }
  MarkedText text = input_text(call);
  text.append("\n", false);  // as jinja2 does: keeps a line end at the end
  const std::vector<MarkedText> lines = split_lines(call.run, text, false);
  MarkedText out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", false);
    const bool blank = !lines[i].empty() || parameters.flag(2, false);
    if (i == 0 ? parameters.flag(1, false) : blank) out.append(indentation);
    out.append(lines[i]);
    call.run.spend_text(lines[i].size() + indentation.size());
    call.run.check_size(out.size());
  }
  return out;
}

// The texts of tojson's argument separators, a pair.
void set_separators(Run& run, const Value& separators, JsonFormat& format) {
  const List* pair = separators.list();
  if (!pair || pair->items.size() != 2 || !pair->items[0].is_text() || !pair->items[1].is_text()) {
    run.fail("tojson: separators must be two texts");
  }
  format.item_separator = pair->items[0].text()->bytes();
  format.key_separator = pair->items[1].text()->bytes();
}

// JSON without HTML escapes, as transformers replaces jinja2's filter.
Value filter_tojson(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args,
                              {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format{.ensure_ascii = parameters.flag(0, false),
                    .sort_keys = parameters.flag(3, false)};
  if (const Value* indent = parameters.find(1); indent && !indent->is_none()) {
    const MarkedText* text = indent->text();
    const int64_t spaces = text ? 0 : std::clamp<int64_t>(parameters.integer(1, 0), 0, 1000);
    format.indent = text ? text->bytes() : std::string(static_cast<size_t>(spaces), ' ');
    format.item_separator.assign(1, ',');  // = "," makes GCC 12 warn of an overlap at -O2
  }
  const Value* separators = parameters.find(2);
  if (separators && !separators->is_none()) set_separators(call.run, *separators, format);
  return to_json(call.run, call.input, format);
}

// All text is written without HTML escapes, so safe changes nothing.
Value filter_safe(const FilterCall& call) {
  const Parameters parameters(call.run, call.name, call.args, {});
  return call.input.is_text() ? call.input : input_text(call);
}

constexpr auto kFilters = std::to_array<FilterEntry>({
    {"abs", filter_abs},         {"capitalize", filter_case},
    {"count", filter_length},    {"d", filter_default},
    {"default", filter_default}, {"dictsort", filter_sort_dict},
    {"first", filter_edge},      {"float", filter_float},
    {"format", filter_format},   {"indent", filter_indent},
    {"int", filter_int},         {"items", filter_items},
    {"join", filter_join},       {"last", filter_edge},
    {"length", filter_length},   {"list", filter_list},
    {"lower", filter_case},      {"map", filter_map},
    {"max", filter_extreme},     {"min", filter_extreme},
    {"reject", filter_select},   {"rejectattr", filter_select_attribute},
    {"replace", filter_replace}, {"reverse", filter_reverse},
    {"round", filter_round},     {"safe", filter_safe},
    {"select", filter_select},   {"selectattr", filter_select_attribute},
    {"sort", filter_sort},       {"string", filter_string},
    {"sum", filter_sum},         {"title", filter_case},
    {"tojson", filter_tojson},   {"trim", filter_trim},
    {"unique", filter_unique},   {"upper", filter_case},
});

}  // namespace

const FilterEntry* find_filter(std::string_view name) {
  const auto at = std::find_if(kFilters.begin(), kFilters.end(),
                               [&](const FilterEntry& filter) { return filter.name == name; });
  return at == kFilters.end() ? nullptr : &*at;
}

}  // namespace sluice::jinja
