// SchemaUris: what the references of a schema name.
//
// "$id" gives a part of a schema a URI of its own, and "$anchor" and "$dynamicAnchor" a name within
// it. Only what is in the document can be named. A pointer within such a part begins there, and so
// does a path: "item" in "https://example.org/root" is "https://example.org/item". Thread rule: a
// value; the schema is not kept.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/schema/schema_tree.h"

namespace sluice {

class SchemaUris {
 public:
  explicit SchemaUris(const Json& root);

  // The JSON pointer that `ref` means in the schema at `pointer`. It need not lead anywhere. Empty
  // if the document has nothing of that name.
  std::optional<std::string> resolve(std::string_view pointer, std::string_view ref) const;
  // The same for "$dynamicRef", whose target depends on where a value's check began. Empty also if
  // that could be several places.
  std::optional<std::string> resolve_dynamic(std::string_view pointer, std::string_view ref) const;

 private:
  using Texts = std::map<std::string, std::string, std::less<>>;

  void add(const Json& schema, const std::string& pointer, std::string base, int depth);
  const std::string& base_at(std::string_view pointer) const;

  Texts resources_;                                  // pointers by URI
  Texts anchors_;                                    // pointers by URI, # and name
  std::multimap<std::string, std::string> dynamic_;  // URIs by the name of a dynamic anchor
  Texts bases_;                                      // URIs by pointer
};

// `ref` as seen from `base`, without an empty fragment (RFC 3986).
std::string joined_uri(std::string_view base, std::string_view ref);

}  // namespace sluice
