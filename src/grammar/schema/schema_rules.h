// SchemaRules: writes the rules of one schema.
//
// Behind schema_grammar. An expression is a text of the rules' notation; without one, no value is
// allowed. Thread rule: one thread.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/rules/rule_writer.h"
#include "grammar/schema/schema_disjoint.h"
#include "grammar/schema/schema_merge.h"

namespace sluice {

class SchemaRules {
 public:
  using Expression = std::optional<std::string>;

  // `empty`: flat schemas, as text, that no value satisfies. REQUIRES: the gate has checked `root`;
  // all outlive this object.
  SchemaRules(const Json& root, Refusals& refusals, std::set<std::string>& empty)
      : root_(root), refusals_(refusals), empty_(empty), merger_(root, refusals) {}

  // All rules; or nothing, and `empty` has grown: then they must be written again.
  std::optional<std::string> write() &&;

 private:
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
    std::map<std::pair<size_t, int64_t>, Expression> made;  // rules by next property and count
  };

  Expression value_of(const Json& schema, const std::string& pointer);
  Expression known_rule(Rule& rule, const std::string& pointer) const;
  Expression constrained(const Json& flat, const std::string& pointer);
  Expression choice_of(const Json& choices, const Json& rest, const char* keyword,
                       const std::string& pointer);
  Expression typed_value(const Json& flat, const std::string& pointer);

  // schema_values.cc
  Expression number_of(const Json& flat, bool is_integer);
  Expression string_of(const Json& flat);
  Expression array_of(const Json& flat, const std::string& pointer);
  Expression array_rest(const Json& flat, const std::string& pointer, size_t num_prefix);
  Expression listed_value(const Json& flat, const Json& values, const std::string& pointer);
  bool satisfies(const Json& value, const Json& flat, const std::string& pointer);
  std::string value_literal(const Json& value);

  // schema_objects.cc
  Expression object_of(const Json& flat, const std::string& pointer);
  bool add_properties(const Json& flat, const std::string& pointer, ObjectParts& parts);
  Json property_schema(const Json& flat, const std::string& name) const;
  void add_other_names(const Json& flat, const std::string& pointer, ObjectParts& parts);
  void add_names(const Automaton& names, const Json& schema, const std::string& pointer,
                 ObjectParts& parts);
  std::optional<Automaton> name_texts(const Json& flat, const std::string& pointer);
  Expression members(ObjectParts& parts, size_t index, int64_t count);
  Expression members_body(ObjectParts& parts, size_t index, int64_t count);
  Expression other_members(ObjectParts& parts, int64_t count);

  void add_basic_rules();

  const Json& root_;
  Refusals& refusals_;
  std::set<std::string>& empty_;
  SchemaMerger merger_;
  RuleWriter rules_;
  std::map<std::string, Rule> made_;  // by the text of their flat schema
  int64_t level_ = 0;                 // of nested arrays and objects
  int value_depth_ = 0;
};

}  // namespace sluice
