// SchemaMerger: one schema for what several ask for at once (allOf, a reference with neighbours,
// what stands beside anyOf).
//
// Used by SchemaGrammar, which needs all that a value must satisfy in one place. Annotations are
// dropped. Thread rule: one thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "grammar/schema/schema_tree.h"

namespace sluice {

class SchemaMerger {
 public:
  // REQUIRES: the gate has checked `root`; both outlive this object.
  SchemaMerger(const Json& root, Refusals& refusals) : root_(root), refusals_(refusals) {}

  // The schema without $ref and allOf at its top: a boolean, or an object of constraints, where
  // `pattern` is a list and `enum` stands for const, too. `pointer`: for errors.
  // Errors: kInvalidArgument for what cannot be merged, and references without end.
  Json flat(const Json& schema, std::string_view pointer);
  // What both ask for, flat.
  Json both(const Json& a, const Json& b, std::string_view pointer);

  // The schema of the property, or item, that has no schema of its own in `schema`.
  static Json rest_of(const Json& schema, const char* keyword);

 private:
  void merge_into(Json& all, const Json& flat_other, std::string_view pointer);
  void merge_key(Json& all, const std::string& key, const Json& value, std::string_view pointer);
  void merge_objects(Json& all, const Json& other, std::string_view pointer);
  void merge_arrays(Json& all, const Json& other, std::string_view pointer);
  void merge_choices(Json& value, const Json& other, std::string_view pointer);
  const Json& flat_ref(const std::string& ref);
  // An unflattened schema that asks for both, merged when it is looked at.
  static Json pair_of(const Json& a, const Json& b);

  const Json& root_;
  Refusals& refusals_;
  int depth_ = 0;
  std::map<std::string, Json> flat_refs_;  // each is flattened once: they may ask for each other
};

}  // namespace sluice
