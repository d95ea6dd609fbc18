// A SAX handler that builds the document, so that duplicate keys and deep nesting are refused while
// parsing: nlohmann's own builder keeps the last of two equal keys and has no depth limit.
#include "io/json.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "io/file.h"
#include "io/json_type.h"

namespace sluice {
namespace {

using nlohmann::json;

// An input iterator that publishes the lexer's position, which SAX callbacks do not receive.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Builds one document; each callback of the parser adds one value, key or container. Callbacks
// return true to go on; errors leave as exceptions.
template <typename Json>
class DocumentBuilder : public nlohmann::json_sax<Json> {
 public:
  DocumentBuilder(std::string_view text, std::string_view name) : text_(text), name_(name) {}

  // Parses the whole text; any error leaves it as an exception.
  Json build() {
    // nlohmann's lexer ends the text at a NUL and would ignore the rest.
    if (const size_t nul = text_.find('\0'); nul != text_.npos) {
      fail_at(nul + 1, fmt::format("not valid JSON: a NUL byte{}", kRepair));
    }
    // nlohmann's lexer skips it.
    if (!kOfFile && text_.starts_with("\xef\xbb\xbf")) {
      fail_at(1, "not valid JSON: a byte order mark; leave it out");
    }
    reached_ = text_.data();
    const char* end = text_.data() + text_.size();
    Json::sax_parse(CountingIterator(text_.data(), &reached_), CountingIterator(end, &reached_),
                    this);
    return std::move(root_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Json::number_float_t value, const std::string&) override {
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }  // cannot occur in text
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  // Creates the member of the innermost open object that the next value will fill.
  bool key(std::string& key) override {
    auto& members = open_.back()->template get_ref<typename Json::object_t&>();
    // The member starts as null; place() then assigns the value that follows the key.
    if constexpr (kOfFile) {
      const auto [slot, inserted] = members.emplace(key, nullptr);
      if (!inserted) fail_twice(key);
      member_ = &slot->second;
    } else {
      // Its emplace compares with every key, which would be quadratic in a text from a client.
      if (!keys_.back().insert(key).second) fail_twice(key);
      make_room(members);
      members.push_back({key, nullptr});
      member_ = &members.back().second;
    }
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Drops the tag of "[json.exception.parse_error.101] parse error at line ...".
    std::string_view reason = error.what();
    if (const size_t tag_end = reason.find("] "); tag_end != reason.npos) {
      reason.remove_prefix(tag_end + 2);
    }
    fail_at(position,
            fmt::format("not valid JSON: {}{}", printable(reason, 4 * kMaxShownChars), kRepair));
    return false;  // not reached
  }

 private:
  // A vector of pairs with constant keys copies them and their values, to any depth, when it grows;
  // nested objects would be copied once a level. Moves the values instead.
  static void make_room(typename Json::object_t& members) {
    if constexpr (!kOfFile) {
      if (members.size() < members.capacity()) return;
      typename Json::object_t grown;
      grown.reserve(std::max<size_t>(1, 2 * members.size()));
      for (auto& [key, value] : members) grown.push_back({key, std::move(value)});
      members.swap(grown);
    }
  }

  // Texts of clients keep the order of their keys.
  static constexpr bool kOfFile = std::is_same_v<Json, json>;
  static constexpr std::string_view kRepair =
      kOfFile ? "; fetch the file again or repair it" : "; repair it";

  // Bytes that the lexer has read so far.
  size_t position() const { return static_cast<size_t>(reached_ - text_.data()); }

  [[noreturn]] void fail_at(size_t position, const std::string& message) const {
    throw Error(ErrorCode::kModel, fmt::format("byte {}: {}", position, message),
                std::string(name_));
  }

  [[noreturn]] void fail_twice(const std::string& key) const {
    fail_at(position(), fmt::format("the key \"{}\" appears twice in one object; keep one of them",
                                    printable(key)));
  }

  // Stores a value at the current place (the root, the member of the last key, or the end of the
  // innermost open array) and returns its address.
  Json* place(Json value) {
    if (++num_values_ > kMaxJsonValues) {
      fail_at(position(),
              fmt::format("more than {} values{}", kMaxJsonValues,
                          kOfFile ? "; no model file has that many: is it the right file?"
                                  : "; send fewer"));
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& items = open_.back()->template get_ref<typename Json::array_t&>();
      items.push_back(std::move(value));
      return &items.back();  // stays valid: nothing is appended here while the child is open
    }
    *member_ = std::move(value);
    return member_;
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  // Starts an object or array; values go into it until close().
  bool open(Json container) {
    if (open_.size() == static_cast<size_t>(kMaxJsonDepth)) {
      fail_at(position(), fmt::format("nested deeper than {} levels; {}", kMaxJsonDepth,
                                      kOfFile ? "no model file needs that" : "nest less"));
    }
    open_.push_back(place(std::move(container)));
    if constexpr (!kOfFile) keys_.emplace_back();
    return true;
  }

  bool close() {
    open_.pop_back();
    if constexpr (!kOfFile) keys_.pop_back();
    return true;
  }

  std::string_view text_;
  std::string_view name_;
  const char* reached_ = nullptr;
  size_t num_values_ = 0;
  Json root_;
  Json* member_ = nullptr;   // where the value of the last key goes
  std::vector<Json*> open_;  // containers that are not closed yet, outermost first
  // The keys so far of each open container; only for objects that keep the order of their keys.
  std::vector<std::unordered_set<std::string>> keys_;
};

// nlohmann stores non-negative literals as uint64_t, which may exceed int64_t, so the two kinds are
// compared separately.
template <typename Json>
std::optional<int64_t> checked_integer(const Json& value, int64_t min, int64_t max) {
  if (value.is_number_unsigned() && !std::in_range<int64_t>(value.template get<uint64_t>())) {
    return std::nullopt;
  }
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.template get<int64_t>();
  if (number < min || number > max) return std::nullopt;
  return number;
}

// Invalid UTF-8 is replaced, since cutting a string may split a character.
template <typename Json>
std::string describe(const Json& value) {
  if (value.is_object()) return fmt::format("an object of {}", value.size());
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  // Cut a long string before dump(), which would copy all of it.
  if (value.is_string()) {
    const auto& text = value.template get_ref<const std::string&>();
    if (text.size() > kMaxShownChars) return describe(Json(text.substr(0, kMaxShownChars)));
  }
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

json parse_json(std::string_view text, std::string_view name) {
  return DocumentBuilder<json>(text, name).build();
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view name) {
  return DocumentBuilder<nlohmann::ordered_json>(text, name).build();
}

json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_file(path), path.string());
}

std::string describe_json(const json& value) { return describe(value); }
std::string describe_json(const nlohmann::ordered_json& value) { return describe(value); }
std::string describe_json(const std::string& text) {
  return describe(json(text.substr(0, kMaxShownChars + 1)));
}

std::optional<int64_t> integer_in(const json& value, int64_t min, int64_t max) {
  return checked_integer(value, min, max);
}
std::optional<int64_t> integer_in(const nlohmann::ordered_json& value, int64_t min, int64_t max) {
  return checked_integer(value, min, max);
}

JsonObject::JsonObject(const json& value, std::string name)
    : value_(&value), name_(std::move(name)) {
  if (!value.is_object()) {
    throw Error(ErrorCode::kModel,
                fmt::format("found {} where an object {{...}} must be; is it the right file?",
                            describe_json(value)),
                name_);
  }
}

const json* JsonObject::find(std::string_view key) const {
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

void JsonObject::fail(std::string_view key, std::string_view allowed) const {
  const json* value = find(key);
  throw Error(ErrorCode::kModel,
              fmt::format("{} is {}; it must be {}", printable(key),
                          value ? describe_json(*value) : "missing", allowed),
              name_);
}

bool JsonObject::has(std::string_view key) const { return find(key) != nullptr; }

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : value_->items()) keys.push_back(item.key());
  return keys;
}

const json& JsonObject::get(std::string_view key) const {
  const json* value = find(key);
  if (!value) fail(key, "given");
  return *value;
}

std::optional<int64_t> JsonObject::find_int(std::string_view key, int64_t min, int64_t max) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  const auto number = integer_in(*value, min, max);
  if (!number) fail(key, fmt::format("an integer from {} to {}", min, max));
  return number;
}

std::optional<double> JsonObject::find_double(std::string_view key, double min, double max) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  // A wrong type becomes NaN, which fails the range check below.
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= min && number <= max)) {
    fail(key, fmt::format("a number from {} to {}", min, max));
  }
  return number;
}

std::optional<bool> JsonObject::find_bool(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::find_string(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::optional<JsonObject> JsonObject::find_object(std::string_view key) const {
  const json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) fail(key, "an object {...}");
  return JsonObject(*value, fmt::format("{}: {}", name_, printable(key)));
}

int64_t JsonObject::get_int(std::string_view key, int64_t min, int64_t max) const {
  if (const auto value = find_int(key, min, max)) return *value;
  fail(key, fmt::format("an integer from {} to {}", min, max));
}

double JsonObject::get_double(std::string_view key, double min, double max) const {
  if (const auto value = find_double(key, min, max)) return *value;
  fail(key, fmt::format("a number from {} to {}", min, max));
}

bool JsonObject::get_bool(std::string_view key) const {
  if (const auto value = find_bool(key)) return *value;
  fail(key, "true or false");
}

std::string JsonObject::get_string(std::string_view key) const {
  if (auto value = find_string(key)) return *std::move(value);
  fail(key, "a string");
}

JsonObject JsonObject::get_object(std::string_view key) const {
  if (auto value = find_object(key)) return *std::move(value);
  fail(key, "an object {...}");
}

std::vector<int64_t> JsonObject::find_ints(std::string_view key, int64_t min, int64_t max) const {
  const json* value = find(key);
  if (!value) return {};
  std::vector<int64_t> numbers;
  // A single integer is read as a list of one.
  const json one_item = value->is_array() ? json() : json::array({*value});
  for (const json& item : value->is_array() ? *value : one_item) {
    const auto number = integer_in(item, min, max);
    if (!number) {
      fail(key, fmt::format("integers from {} to {}, and one of them is {}", min, max,
                            describe_json(item)));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<std::string> JsonObject::find_strings(std::string_view key) const {
  const json* value = find(key);
  if (!value) return {};
  if (!value->is_array()) fail(key, "a list of strings");
  std::vector<std::string> strings;
  for (const json& item : *value) {
    if (!item.is_string()) fail(key, "a list of strings");
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

}  // namespace sluice
