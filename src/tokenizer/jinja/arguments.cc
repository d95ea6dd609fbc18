// Assigns positional arguments first, then named ones.
#include "tokenizer/jinja/arguments.h"

#include <algorithm>

namespace sluice::jinja {

Value::Text name_text(Run& run, const Args& args, std::string_view name) {
  run.spend(1 + args.names.size());
  for (const Value::Text& text : args.names) {
    if (text->bytes().data() == name.data()) return text;
  }
  return make_text(name).shared_text();
}

Parameters::Parameters(Run& run, std::string_view what, const Args& args,
                       std::initializer_list<std::string_view> names)
    : run_(run), what_(what), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names_.size()) {
    run.fail("{} takes {} arguments, not {}", what, names_.size(), args.positional.size());
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [given, value] : args.named) {
    const auto at = std::find(names_.begin(), names_.end(), given);
    if (at == names_.end()) run.fail("{} has no argument {}", what, given);
    const Value*& slot = values_[static_cast<size_t>(at - names_.begin())];
    if (slot) run.fail("{} is given {} twice", what, given);
    slot = &value;
  }
}

const MarkedText* Parameters::find_text(size_t index) const {
  const Value* value = find(index);
  if (!value || value->is_none()) return nullptr;
  if (!value->is_text()) {
    run_.fail("{}: {} is {}; it must be a text", what_, name(index), value->type_name());
  }
  return value->text();
}

int64_t Parameters::integer(size_t index, int64_t otherwise) const {
  const Value* value = find(index);
  if (!value || value->is_none()) return otherwise;
  if (const auto* number = value->get<int64_t>()) return *number;
  if (const auto* flag = value->get<bool>()) return *flag ? 1 : 0;
  run_.fail("{}: {} is {}; it must be an integer", what_, name(index), value->type_name());
}

bool Parameters::flag(size_t index, bool otherwise) const {
  const Value* value = find(index);
  return value ? value->truth() : otherwise;
}

const Value& Parameters::need(size_t index) const {
  const Value* value = find(index);
  if (!value) run_.fail("{} lacks the argument {}", what_, name(index));
  return *value;
}

const MarkedText& Parameters::need_text(size_t index) const {
  need(index);
  const MarkedText* text = find_text(index);
  if (!text) run_.fail("{}: {} is none; it must be a text", what_, name(index));
  return *text;
}

}  // namespace sluice::jinja
