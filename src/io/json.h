// Strict JSON: parsing with limits, and typed, range-checked reading of objects.
//
// Used by everything that reads a file of a model directory, and by the server for what clients
// send. nlohmann/json.hpp is slow to compile, so this header only declares the type; include it in
// a .cc that reads documents without JsonObject. Thread rule: parsing keeps no state; a JsonObject
// is a view of a document that must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "io/json_type.h"

namespace sluice {

// Nesting beyond this is refused; nlohmann's copy and destructor recurse once per level.
inline constexpr int kMaxJsonDepth = 64;

// Documents with more values (keys not counted) are refused; each value takes 16 to 100 bytes of
// memory. The largest real documents, tokenizers with merges as pairs, have 2 million; a
// safetensors header of a million tensors would have 8 million.
inline constexpr size_t kMaxJsonValues = 8'000'000;

// Parses a whole document; `name` (a file name) opens every error text.
//
// Errors: kModel with the byte position for syntax errors, invalid UTF-8, trailing text, numbers
// out of range, a key given twice in one object, nesting deeper than kMaxJsonDepth and more than
// kMaxJsonValues values.
nlohmann::json parse_json(std::string_view text, std::string_view name);
// The same for texts of clients: keys of objects stay in the order of the text, errors give no
// advice about files, and a byte order mark is refused.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view name);

// Reads and parses a file that a user names. Errors: kIo when it cannot be read, otherwise as
// parse_json.
nlohmann::json read_json_file(const std::filesystem::path& path);

// A short, printable form of a value ("-3", "\"gelu\"", "a list of 2"), for error texts.
std::string describe_json(const nlohmann::json& value);
std::string describe_json(const nlohmann::ordered_json& value);
std::string describe_json(const std::string& text);  // as a value

// The number if `value` is an integer in [min, max]. 3.0 is none, and neither is true.
std::optional<int64_t> integer_in(const nlohmann::json& value, int64_t min, int64_t max);
std::optional<int64_t> integer_in(const nlohmann::ordered_json& value, int64_t min, int64_t max);

// An object of a document with typed getters.
//
// A key with the value null counts as absent, as in Python's configuration files. get_x requires
// the key; find_x returns nothing when it is absent. Both refuse a value of the wrong type or out
// of [min, max], never convert and never wrap.
// Errors: kModel that names the file, the path of the key, the value found and what is allowed.
class JsonObject {
 public:
  // `name` is the file, or file and key path, that error texts start with.
  JsonObject(const nlohmann::json& value, std::string name);
  JsonObject(nlohmann::json&& value, std::string name) = delete;  // it would dangle

  const std::string& name() const { return name_; }
  // Whether the key is present and not null.
  bool has(std::string_view key) const;
  // All keys, those with null included, in the order of the map (alphabetical).
  std::vector<std::string> keys() const;

  // The value itself, for lists and objects without a getter; it may have any type but null.
  const nlohmann::json& get(std::string_view key) const;
  int64_t get_int(std::string_view key, int64_t min, int64_t max) const;
  double get_double(std::string_view key, double min, double max) const;
  bool get_bool(std::string_view key) const;
  std::string get_string(std::string_view key) const;
  JsonObject get_object(std::string_view key) const;

  std::optional<int64_t> find_int(std::string_view key, int64_t min, int64_t max) const;
  std::optional<double> find_double(std::string_view key, double min, double max) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<JsonObject> find_object(std::string_view key) const;

  // One integer or a list of them, as eos_token_id comes; empty when the key is absent.
  std::vector<int64_t> find_ints(std::string_view key, int64_t min, int64_t max) const;
  // A list of strings; empty when the key is absent.
  std::vector<std::string> find_strings(std::string_view key) const;

  // Throws the error "name: key is <found>; it must be <allowed>", for rules that the getters do
  // not check.
  [[noreturn]] void fail(std::string_view key, std::string_view allowed) const;

 private:
  // Null if the key is absent or its value is null.
  const nlohmann::json* find(std::string_view key) const;

  const nlohmann::json* value_;
  std::string name_;
};

}  // namespace sluice
