// Reads values by the kind of their row.
#include "options.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "core/error.h"
#include "core/option_check.h"
#include "errors.h"
#include "text/option_text.h"
#include "values.h"

namespace sluice::python {
namespace {

[[noreturn]] void refuse_type(const OptionFacts& facts, const char* wanted, nb::handle value) {
  throw nb::type_error(fmt::format("{} must be {}, not {}", facts.name, wanted,
                                   nb::str(value.type().attr("__name__")).c_str())
                           .c_str());
}

std::optional<OptionValue> read_whole(const OptionFacts& facts, nb::handle value) {
  if (nb::isinstance<nb::str>(value) && facts.kind != OptionKind::kWhole) {
    return read_option_value(facts, facts.name, nb::cast<std::string>(value));
  }
  if (PyIndex_Check(value.ptr()) == 0 || PyBool_Check(value.ptr())) {
    refuse_type(facts, "a whole number", value);
  }
  const nb::object whole = nb::steal(PyNumber_Index(value.ptr()));
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
  if (overflow != 0) {
    fail(ErrorCode::kInvalidArgument, "{} is {}, which has more than 64 bits", facts.name,
         nb::str(whole).c_str());
  }
  if (means_unset(facts, number)) return std::nullopt;
  return int64_t{number};
}

double read_number(const OptionFacts& facts, nb::handle value) {
  if (PyBool_Check(value.ptr()) || nb::isinstance<nb::str>(value) ||
      PyNumber_Check(value.ptr()) == 0) {
    refuse_type(facts, "a number", value);
  }
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

// Also a path, such as pathlib's.
std::string read_text(const OptionFacts& facts, nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return to_string(nb::borrow<nb::str>(value));
  if (!nb::hasattr(value, "__fspath__")) refuse_type(facts, "a text", value);
  return nb::cast<std::string>(value.attr("__fspath__")());
}

int64_t read_choice(const OptionFacts& facts, nb::handle value) {
  if (!nb::isinstance<nb::str>(value)) refuse_type(facts, "a text", value);
  const auto index = read_option_value(facts, facts.name, nb::cast<std::string>(value));
  return std::get<int64_t>(*index);
}

std::vector<std::string> read_texts(const OptionFacts& facts, nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return {nb::cast<std::string>(value)};
  std::vector<std::string> texts;
  if (!nb::try_cast(value, texts)) refuse_type(facts, "a text or a list of texts", value);
  return texts;
}

std::map<int32_t, float> read_biases(const OptionFacts& facts, nb::handle value) {
  if (!nb::isinstance<nb::dict>(value)) refuse_type(facts, "a dict of token id to number", value);
  std::map<int32_t, float> biases;
  for (const auto& [id, bias] : nb::cast<nb::dict>(value)) {
    // Clients of OpenAI's API write the ids as texts. A float is refused, not rounded down.
    if (PyFloat_Check(id.ptr())) refuse_type(facts, "a dict of token id to number", value);
    const nb::object number = nb::steal(PyNumber_Long(id.ptr()));
    if (!number.is_valid()) throw nb::python_error();
    nb::list ids;
    ids.append(number);
    biases[to_token_ids(ids)[0]] = static_cast<float>(read_number(facts, bias));
  }
  return biases;
}

// The result of read(), whose error gets the option's name.
template <typename Read>
auto named(const OptionFacts& facts, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw error.in(facts.name);
  }
}

std::optional<OptionValue> read_value(const OptionFacts& facts, nb::handle value) {
  switch (facts.kind) {
    case OptionKind::kFlag:
      if (!PyBool_Check(value.ptr())) refuse_type(facts, "True or False", value);
      return value.is(nb::handle(Py_True));
    case OptionKind::kWhole:
    case OptionKind::kTokens:
    case OptionKind::kBytes:
      return read_whole(facts, value);
    case OptionKind::kNumber:
      return read_number(facts, value);
    case OptionKind::kText:
      return read_text(facts, value);
    case OptionKind::kChoice:
      return read_choice(facts, value);
    case OptionKind::kTexts:
      return read_texts(facts, value);
    case OptionKind::kTokenIds:
      return named(facts, [&] { return to_token_ids(value); });
    case OptionKind::kTokenBiases:
      return named(facts, [&] { return read_biases(facts, value); });
  }
  return std::nullopt;
}

// Checked before it is stored, since a field may be narrower than the value.
template <typename Options>
void set_row(const OptionRow<Options>& row, nb::handle value, Options* options) {
  std::optional<OptionValue> read;
  if (!value.is_none()) read = read_value(row.facts, value);
  if (read) check_option(row.facts, *read);
  row.set(*options, std::move(read));
}

constexpr OptionRow kSkipTokenizerRow = option_row<&EngineOptions::skip_tokenizer_init>(
    {.name = "skip_tokenizer_init", .kind = OptionKind::kFlag});

// Calls visit(row, options that have its field) for every row of an engine's options.
template <typename Visit>
void for_engine_rows(EngineOptions& options, const Visit& visit) {
  for (const auto& row : kEngineOptionRows) visit(row, options);
  for (const auto& row : {kSeedRow, kTimelineRow, kChatTemplateRow, kSkipTokenizerRow}) {
    visit(row, options);
  }
  for (const auto& row : kKvOptionRows) visit(row, options.kv);
  for (const auto& row : kKvOffloadRows) visit(row, options.kv);
  for (const auto& row : kKvStoreRows) visit(row, options.kv_store);
  for (const auto& row : kKvEventsRows) visit(row, options.kv_events);
  for (const auto& row : kStateCacheRows) visit(row, options.state_cache);
  for (const auto& row : kSparseOptionRows) visit(row, options.sparse);
  for (const auto& row : kSpeculativeRows) visit(row, options.speculative);
}

// Calls visit(row) for every row of a request's parameters.
template <typename Visit>
void for_sampling_rows(const Visit& visit) {
  for (const auto& row : kSamplingRows) visit(row);
  visit(kSkipSpecialRow);
}

std::vector<std::string> engine_option_names() {
  EngineOptions options;
  std::vector<std::string> names;
  for_engine_rows(options, [&](const auto& row, auto&) { names.emplace_back(row.facts.name); });
  std::sort(names.begin(), names.end());
  return names;
}

void set_engine_option(EngineOptions& options, std::string_view name, nb::handle value) {
  bool is_known = false;
  for_engine_rows(options, [&](const auto& row, auto& fields) {
    if (row.facts.name != name) return;
    set_row(row, value, &fields);
    is_known = true;
  });
  if (!is_known) {
    throw nb::type_error(unknown_keyword("LLM", name, engine_option_names()).c_str());
  }
}

nb::str name_of(const OptionFacts& facts) { return nb::str(facts.name.data(), facts.name.size()); }

struct ToPython {
  template <typename T>
  nb::object operator()(const T& value) const {
    return nb::cast(value);
  }
};

// The kind, its text and its choices, as _structured.py gives them.
std::shared_ptr<const StructuredOutput> structure_of(nb::handle value) {
  constexpr std::array kKinds = {std::pair{"json", StructureKind::kJsonSchema},
                                 std::pair{"json_object", StructureKind::kJsonObject},
                                 std::pair{"regex", StructureKind::kRegex},
                                 std::pair{"choice", StructureKind::kChoice},
                                 std::pair{"grammar", StructureKind::kGrammar}};
  const auto [name, text, choices] =
      nb::cast<std::tuple<std::string, std::string, std::vector<std::string>>>(value);
  for (const auto& [known, kind] : kKinds) {
    if (name != known) continue;
    return std::make_shared<const StructuredOutput>(
        StructuredOutput{.kind = kind, .text = text, .choices = choices});
  }
  throw nb::type_error("structured_outputs has an unknown kind");
}

}  // namespace

EngineOptions engine_options(const nb::dict& keywords) {
  EngineOptions options;
  for (const auto& [name, value] : keywords) {
    set_engine_option(options, nb::cast<std::string>(name), value);
  }
  return options;
}

SamplingParams sampling_params(const nb::dict& keywords) {
  SamplingParams params;
  const auto set = [&](const auto& row) {
    const nb::str name = name_of(row.facts);
    if (keywords.contains(name)) set_row(row, keywords[name], &params);
  };
  for_sampling_rows(set);
  set(kCacheSaltRow);
  if (keywords.contains("structured_outputs")) {
    params.structured = structure_of(keywords["structured_outputs"]);
  }
  params.validate();
  return params;
}

Keywords to_dict(const SamplingParams& params) {
  Keywords values;
  for_sampling_rows([&](const auto& row) {
    const std::optional<OptionValue> value = row.get(params);
    values[name_of(row.facts)] = value ? std::visit(ToPython(), *value) : nb::none();
  });
  return values;
}

void bind_options(nb::module_& m) {
  m.def("engine_option_names", engine_option_names, "The keywords of Engine, sorted.");
  m.def(
      "sampling_defaults", [] { return to_dict({}); },
      "The parameters of a request and their initial values; None where there is none.");
  m.def(
      "check_sampling", [](const Keywords& keywords) { sampling_params(keywords); },
      nb::arg("keywords"),
      "Raises sluice.Error for a parameter out of its range, TypeError for one of another type.");
}

}  // namespace sluice::python
