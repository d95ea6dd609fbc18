// Walks over the keywords that hold schemas, so that an "$id" within a value is none.
#include "grammar/schema/schema_uris.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr int kMaxUriDepth = 128;  // twice what the gate accepts

constexpr std::array<std::string_view, 20> kHoldSchemas = {"additionalItems",
                                                           "additionalProperties",
                                                           "contains",
                                                           "contentSchema",
                                                           "else",
                                                           "if",
                                                           "items",
                                                           "not",
                                                           "propertyNames",
                                                           "then",
                                                           "allOf",
                                                           "unevaluatedItems",
                                                           "anyOf",
                                                           "unevaluatedProperties",
                                                           "oneOf",
                                                           "prefixItems",
                                                           "dependencies",
                                                           "dependentSchemas",
                                                           "patternProperties",
                                                           "properties"};

// The length of "scheme:" at the front, or 0.
size_t scheme_size(std::string_view uri) {
  if (uri.empty() || std::isalpha(static_cast<unsigned char>(uri[0])) == 0) return 0;
  for (size_t i = 1; i < uri.size(); ++i) {
    const char c = uri[i];
    if (c == ':') return i + 1;
    const bool is_part =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
    if (!is_part) return 0;
  }
  return 0;
}

// Where the path of a URI begins.
size_t path_begin(std::string_view uri) {
  const size_t scheme = scheme_size(uri);
  if (!uri.substr(scheme).starts_with("//")) return scheme;
  return std::min(uri.find('/', scheme + 2), uri.size());
}

// . is the folder itself and .. the one above; at the end they leave a slash.
std::string without_dots(std::string_view path) {
  std::vector<std::string_view> parts;
  const bool is_absolute = path.starts_with('/');
  if (is_absolute) path.remove_prefix(1);
  for (bool is_last = false; !is_last;) {
    const size_t end = path.find('/');
    is_last = end == std::string_view::npos;
    const std::string_view part = path.substr(0, end);
    if (part == ".." && !parts.empty()) parts.pop_back();
    const bool is_dots = part == "." || part == "..";
    if (!is_dots) parts.push_back(part);
    if (is_dots && is_last) parts.emplace_back();
    if (!is_last) path.remove_prefix(end + 1);
  }
  std::string result = is_absolute ? "/" : "";
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) result += '/';
    result += parts[i];
  }
  return result;
}

// Percent signs as in the fragment of a URI.
std::string decoded(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || i + 2 >= text.size()) {
      result += text[i];
      continue;
    }
    result +=
        static_cast<char>(std::strtol(std::string(text.substr(i + 1, 2)).c_str(), nullptr, 16));
    i += 2;
  }
  return result;
}

// Null if the keyword is absent, or a property of this name that has another type.
const std::string* text_in(const Json& schema, const char* keyword) {
  const auto it = schema.find(keyword);
  return it == schema.end() || !it->is_string() ? nullptr : &it->get_ref<const std::string&>();
}

}  // namespace

// A URI of its own, the rest of one from its host or its path on, or a path from the folder of the
// base. Bases without a scheme are paths, which is enough to compare them.
std::string joined_uri(std::string_view base, std::string_view ref) {
  if (ref.ends_with('#')) ref.remove_suffix(1);
  if (ref.empty()) return std::string(base);
  if (ref[0] == '#') return std::string(base.substr(0, base.find('#'))) + std::string(ref);
  const size_t own_path = path_begin(ref);
  if (scheme_size(ref) > 0) {
    return std::string(ref.substr(0, own_path)) + without_dots(ref.substr(own_path));
  }
  if (ref.starts_with("//"))
    return std::string(base.substr(0, scheme_size(base))) + std::string(ref);
  const size_t begin = path_begin(base);
  const std::string_view path = base.substr(begin);
  const size_t slash = path.rfind('/');
  const bool is_absolute = ref.starts_with('/');
  const std::string_view folder =
      is_absolute || slash == std::string_view::npos ? "" : path.substr(0, slash + 1);
  return std::string(base.substr(0, begin)) + without_dots(std::string(folder) + std::string(ref));
}

// A document without an "$id" has the empty URI, which references without a path mean.
SchemaUris::SchemaUris(const Json& root) {
  resources_.emplace("", "");
  bases_.emplace("", "");
  add(root, "", "", 0);
}

// Before draft 2019-09 an "$id" that begins with # was an anchor.
void SchemaUris::add(const Json& schema, const std::string& pointer, std::string base, int depth) {
  if (!schema.is_object() || depth > kMaxUriDepth) return;
  const auto add_anchor = [&](const std::string& name) {
    anchors_.emplace(base + '#' + name, pointer);
  };
  const std::string* const id = text_in(schema, "$id");
  if (id != nullptr && id->starts_with('#')) add_anchor(id->substr(1));
  if (id != nullptr && !id->starts_with('#')) {
    base = joined_uri(base, *id);
    bases_[pointer] = base;
    resources_.emplace(base, pointer);
  }
  if (const std::string* const name = text_in(schema, "$anchor")) add_anchor(*name);
  if (const std::string* const name = text_in(schema, "$dynamicAnchor")) {
    add_anchor(*name);
    dynamic_.emplace(*name, base);
  }
  const auto add_parts = [&](const Json& parts, const std::string& place) {
    size_t index = 0;
    for (auto it = parts.begin(); it != parts.end(); ++it, ++index) {
      const std::string key = parts.is_array() ? std::to_string(index) : it.key();
      add(it.value(), pointer_to(place, key), base, depth + 1);
    }
  };
  for (auto it = schema.begin(); it != schema.end(); ++it) {
    const bool is_map = it.key() == "$defs" || it.key() == "definitions";
    if (!is_map && std::ranges::find(kHoldSchemas, it.key()) == kHoldSchemas.end()) continue;
    const std::string place = pointer_to(pointer, it.key());
    const bool is_many = is_map || it->is_array() || it.key() == "properties" ||
                         it.key() == "patternProperties" || it.key().starts_with("depend");
    if (is_many && it->is_structured()) {
      add_parts(it.value(), place);
    } else {
      add(it.value(), place, base, depth + 1);
    }
  }
}

// That of the nearest schema above that has one.
const std::string& SchemaUris::base_at(std::string_view pointer) const {
  for (auto it = bases_.find(pointer);; it = bases_.find(pointer)) {
    if (it != bases_.end()) return it->second;
    pointer = pointer.substr(0, pointer.rfind('/'));
  }
}

// A fragment is a pointer within the part of the document that has the URI, or a name.
std::optional<std::string> SchemaUris::resolve(std::string_view pointer,
                                               std::string_view ref) const {
  const std::string uri = joined_uri(base_at(pointer), ref);
  const size_t hash = std::min(uri.find('#'), uri.size());
  const std::string fragment =
      decoded(std::string_view(uri).substr(std::min(hash + 1, uri.size())));
  if (!fragment.empty() && fragment[0] != '/') {
    const auto anchor = anchors_.find(uri.substr(0, hash) + '#' + fragment);
    return anchor == anchors_.end() ? std::nullopt : std::optional(anchor->second);
  }
  const auto resource = resources_.find(uri.substr(0, hash));
  if (resource == resources_.end()) return std::nullopt;
  return resource->second + fragment;
}

// A check always begins at the root: if that has the anchor, it is the outermost one.
std::optional<std::string> SchemaUris::resolve_dynamic(std::string_view pointer,
                                                       std::string_view ref) const {
  const std::string uri = joined_uri(base_at(pointer), ref);
  const size_t hash = std::min(uri.find('#'), uri.size());
  const std::string name = hash < uri.size() ? uri.substr(hash + 1) : "";
  // A plain anchor, or the only dynamic one of the name, is found as by "$ref".
  const auto [first, last] = dynamic_.equal_range(name);
  const auto has = [&, first = first, last = last](const std::string& base) {
    return std::any_of(first, last, [&](const auto& anchor) { return anchor.second == base; });
  };
  if (!has(uri.substr(0, hash)) || std::next(first) == last) return resolve(pointer, ref);
  const std::string& root = base_at("");
  return has(root) ? resolve("", '#' + name) : std::nullopt;
}

}  // namespace sluice
