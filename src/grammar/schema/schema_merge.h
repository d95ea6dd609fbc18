// SchemaMerger: one schema for what several ask for at once (allOf, a reference with neighbours,
// what stands beside anyOf).
//
// Used by SchemaRules, which needs all that a value must satisfy in one place. Annotations are
// dropped. Thread rule: one thread.
//
// The result is a flat schema: a boolean, or an object of constraints without $ref, allOf, not, if
// and unevaluatedX. Several of a kind are kept side by side. In lists, all of which must hold:
//
//   pattern, format     texts, or ["not", text]
//   multipleOf          numbers, or ["not", number]
//   anyOf, oneOf        lists of schemas
//   %notEnum            scalar values, none of which is allowed
//   %others             {names, patterns, schema}: for properties that are none of these
//   %contains           {schema, min, max, from}: how many items satisfy it, from a position on
//
// Of numbers and counts the tighter limit is kept. Schemas of properties and items that several
// parts have become an allOf, which is merged when it is looked at: so what contains itself ends.
//
// `enum` stands for const, too; `type` may name "%fraction", numbers that are no integers.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "grammar/automata/automaton.h"
#include "grammar/schema/schema_tree.h"

namespace sluice {

class SchemaMerger {
 public:
  // REQUIRES: the gate has checked `root`; both outlive this object.
  SchemaMerger(const Json& root, Refusals& refusals) : root_(root), refusals_(refusals) {}

  // `pointer`: for errors.
  // Errors: kInvalidArgument for what cannot be merged, and references without end.
  Json flat(const Json& schema, std::string_view pointer);
  // What both ask for, flat.
  Json both(const Json& a, const Json& b, std::string_view pointer);
  // What a reference of the schema names.
  const Json& target_of(const Json& ref) const;

  // The schema of the items that have none of their own in a flat schema.
  static Json rest_items(const Json& flat);
  // What a flat schema says of a property: by its name, the patterns that it matches, and by all
  // that is said of others.
  Json property_schema(const Json& flat, const std::string& name);
  // The texts with a part that matches; made once.
  const Automaton& pattern_texts(const std::string& pattern);
  bool matches_any(const Json& patterns, const std::string& name);

  Refusals& refusals() { return refusals_; }

 private:
  void merge_into(Json& all, const Json& flat_other, std::string_view pointer);
  void merge_key(Json& all, const std::string& key, const Json& value, std::string_view pointer);
  void merge_maps(Json& value, const Json& other, std::string_view pointer);
  const Json& flat_ref(const std::string& ref);

  const Json& root_;
  Refusals& refusals_;
  int depth_ = 0;
  int64_t num_merged_ = 0;
  std::map<std::string, Json> flat_refs_;  // each is flattened once: they may ask for each other
  std::map<std::string, Automaton> patterns_;
};

// An unflattened schema that asks for both, merged when it is looked at.
Json pair_of(const Json& a, const Json& b);

}  // namespace sluice
