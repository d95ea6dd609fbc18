// SchemaRules: writes the rules of one schema.
//
// Behind schema_grammar. An expression is a text of the rules' notation; without one, no value is
// allowed. Thread rule: one thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/rules/rule_writer.h"
#include "grammar/schema/schema_disjoint.h"
#include "grammar/schema/schema_merge.h"
#include "sluice/structured_output.h"

namespace sluice {

class SchemaRules {
 public:
  using Expression = std::optional<std::string>;

  // `empty`: flat schemas, as text, that no value satisfies. REQUIRES: the gate has checked `root`;
  // all outlive this object.
  // `parameters`: how the root is written if it is no JSON; null otherwise.
  SchemaRules(const Json& root, Refusals& refusals, std::set<std::string>& empty,
              const ParameterForm* parameters)
      : root_(root),
        refusals_(refusals),
        empty_(empty),
        parameters_(parameters),
        place_(parameters == nullptr ? Place::kDocument : Place::kArguments),
        merger_(root, refusals) {}

  // All rules; or nothing, and `empty` has grown: then they must be written again.
  std::optional<std::string> write() &&;

 private:
  // How a value is written: as JSON, or as what ParameterForm says of all arguments and of one.
  enum class Place { kDocument, kArguments, kParameter };

  struct Rule {
    std::string name;
    int64_t level = 0;          // level_ where it was begun
    bool is_open = false;       // its body is being written
    bool is_used_open = false;  // it was referred to meanwhile
    bool is_empty = false;      // no value satisfies it
  };
  // A property with a schema of its own, or a name that is required.
  struct Property {
    std::string name;
    Expression value;
    bool is_required = false;
  };
  // The other names of an object: their rule, and that of their values.
  struct OtherNames {
    std::string name;
    std::string value;
  };
  struct ObjectParts {
    std::vector<Property> properties;
    std::vector<OtherNames> others;
    int64_t min = 0;
    std::optional<int64_t> max;
    bool is_arguments = false;                              // not JSON
    std::map<std::pair<size_t, int64_t>, Expression> made;  // rules by next property and count
  };

  // Names that match the same patterns.
  struct NameClass {
    Automaton names;
    std::set<std::string> patterns;
  };
  // Items that are all different, from a short list of values.
  struct UniqueItems {
    std::vector<std::string> literals;           // of all values
    std::vector<std::vector<size_t>> positions;  // which may come there; the last one is for more
    int64_t min = 0;
    std::optional<int64_t> max;
    std::map<uint32_t, Expression> made;  // rules by the set of values that came
  };
  // How many items there were, as far as it matters, and how many of each kind that is counted.
  struct ItemCounts {
    int64_t position = 0;
    std::vector<int64_t> counts;

    // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside <=> for a pointer
    auto operator<=>(const ItemCounts&) const = default;
  };
  struct CountedItems {
    const Json& flat;
    const std::string& pointer;
    int64_t last_position = 1;  // further ones are like it
    std::map<ItemCounts, Expression> made;
  };

  Expression value_of(const Json& schema, const std::string& pointer);
  Expression known_rule(Rule& rule, const std::string& pointer) const;
  Expression constrained(const Json& flat, const std::string& pointer);
  // Rules of the schemas that may have a value, each once.
  Expression any_choice(const std::vector<Json>& schemas, const std::string& pointer);
  // One list of choices is taken apart at a time; the others are still in each of the results.
  std::optional<std::vector<Json>> choices_of(const Json& flat, const std::string& pointer);
  void keep_one(const Json& list, std::vector<Json>& merged, const std::string& pointer);
  // Without choices and listed values: a rule for each type.
  Expression typed_value(const Json& flat, const std::string& pointer);

  // schema_parameters.cc
  // What stands for a schema that allows all.
  Expression any_value();
  // Equal schemas at places where they are written in different ways differ.
  std::string key_of(const Json& flat) const;
  // The value of a property of arguments.
  Expression parameter_of(const Json& schema, const std::string& name, const std::string& pointer);
  // The texts that can stand as they are, and are read as texts.
  const Automaton& plain_texts();
  Expression plain_string(const Json& flat, const std::string& pointer);
  Expression plain_literals(const Json& values);
  Expression other_parameters(const ObjectParts& parts, int64_t count);
  static Automaton parameter_names(const Automaton& names);

  // schema_values.cc
  // `types`: integers, fractions or both.
  Expression number_of(const Json& flat, unsigned types);
  Expression string_of(const Json& flat, const std::string& pointer);
  Expression literals_of(const Json& values);
  void count_literal(const std::string& literal);
  // Blanks may stand between the parts of arrays and objects.
  std::string value_literal(const Json& value);

  // schema_arrays.cc
  // Items that repeat, or in a row where each position, set or count has a rule of its own.
  Expression array_of(const Json& flat, const std::string& pointer);
  Expression plain_array(const Json& flat, const std::string& pointer);
  Expression array_rest(const Json& flat, const std::string& pointer, size_t num_prefix);
  // Whether uniqueItems needs no rules.
  bool is_always_unique(const Json& flat, const std::string& pointer);
  // What the rules of different items need: literals of all values, and where each may come.
  std::optional<UniqueItems> unique_items(const Json& flat, const std::string& pointer);
  Expression unique_rest(UniqueItems& items, uint32_t used);
  // What the rules of counted items need. A state is a position and a count for each `contains`.
  std::optional<CountedItems> counted_items(const Json& flat, const std::string& pointer);
  Expression counted_rest(CountedItems& items, const ItemCounts& state);
  std::vector<std::string> counted_next(CountedItems& items, const ItemCounts& state,
                                        const std::string& name);

  // schema_objects.cc
  // Properties in their order, each with what may follow it, and then other names in any order.
  Expression object_of(const Json& flat, const std::string& pointer);
  void limit_counts(const Json& flat, const std::string& pointer, ObjectParts& parts);
  bool add_properties(const Json& flat, const std::string& pointer, ObjectParts& parts);
  // Other names by the patterns that they match; each class has its own schema.
  std::vector<NameClass> classes_of(const Json& flat, const Automaton& names,
                                    const std::string& pointer);
  static Json class_schema(const Json& flat, const NameClass& names);
  void add_other_names(const Json& flat, const std::string& pointer, ObjectParts& parts);
  void add_names(const Automaton& names, const Json& schema, const std::string& pointer,
                 ObjectParts& parts);
  std::optional<Automaton> name_texts(const Json& schema, const std::string& pointer);
  // Rules by the next property and by how many came, as far as that matters.
  Expression members(ObjectParts& parts, size_t index, int64_t count);
  std::string member_of(const ObjectParts& parts, int64_t count, const Property& property);
  Expression members_body(ObjectParts& parts, size_t index, int64_t count);
  Expression other_members(ObjectParts& parts, int64_t count);

  void add_basic_rules();

  const Json& root_;
  Refusals& refusals_;
  std::set<std::string>& empty_;
  const ParameterForm* parameters_;
  Place place_;
  unsigned plain_types_ = 0;  // of the parameter that is written: what its text may be read as
  std::map<unsigned, Automaton> plain_texts_;      // by these types
  std::map<unsigned, std::string> any_parameter_;  // rules, by the same
  SchemaMerger merger_;
  RuleWriter rules_;
  std::map<std::string, Rule> made_;  // by the text of their flat schema
  size_t literal_bytes_ = 0;          // of all listed values
  size_t key_bytes_ = 0;              // of all these texts
  int64_t level_ = 0;                 // of nested arrays and objects
  int value_depth_ = 0;
};

}  // namespace sluice
