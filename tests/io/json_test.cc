// Strict JSON against RFC 8259's rules, plus the limits that the parser library does not have.
#include "io/json.h"

#include <ctime>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "core/error.h"
#include "io/json_type.h"

namespace sluice {
namespace {

constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

// The text of the error that `action` throws, or "" when it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    return error.what();
  }
  return "";
}

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_json(text, "a.json"); });
}

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(ParseJson, KeepsValuesExactly) {
  const nlohmann::json document = parse_json(
      R"( {"a": [1, -2, 3.5, true, false, null, {}, []], "b": {"c": "\u00e9\ud83d\ude00\n"},
           "max": 18446744073709551615, "": 0} )",
      "a.json");
  // The library's own parser agrees where no limit of ours is reached.
  EXPECT_EQ(document, nlohmann::json::parse(document.dump()));
  EXPECT_EQ(document["a"].size(), 8u);
  EXPECT_EQ(document["a"][1], -2);
  EXPECT_EQ(document["b"]["c"], "\xC3\xA9\xF0\x9F\x98\x80\n");
  EXPECT_EQ(document["max"].get<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(document[""], 0);
}

TEST(ParseJson, AcceptsScalarsAtTheRoot) {
  EXPECT_EQ(parse_json("7", "a.json"), 7);
  EXPECT_EQ(parse_json(" \"x\" ", "a.json"), "x");
}

TEST(ParseJson, RefusesBrokenSyntaxWithPosition) {
  EXPECT_EQ(parse_error("{\"a\": 1,}").rfind("a.json: byte 9: not valid JSON", 0), 0u)
      << parse_error("{\"a\": 1,}");
  for (const char* text : {"",      " ",        "{",        "[1,",     "{\"a\"}",     "{'a': 1}",
                           "[1 2]", "01",       "+1",       "1.",      ".5",          "nul",
                           "NaN",   "Infinity", "-",        "\"\\x\"", "\"\\ud800\"", "{\"a\":1}}",
                           "[1] x", "// c\n1",  "\"a\nb\"", "1e999"}) {
    const std::string error = parse_error(text);
    EXPECT_NE(error.find("a.json: byte "), error.npos) << text << " -> " << error;
  }
}

TEST(ParseJson, RefusesTextBehindANulByte) {
  EXPECT_EQ(parse_error(std::string("{}\0", 3)),
            "a.json: byte 3: not valid JSON: a NUL byte; fetch the file again or repair it");
  EXPECT_NE(parse_error(std::string("{}\0{\"a\": 1}", 11)), "");
}

TEST(ParseJson, RefusesInvalidUtf8AndKeepsTheErrorPrintable) {
  for (const char* text :
       {"\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xe2\x82\"", "\"\xf4\x90\x80\x80\""}) {
    const std::string error = parse_error(text);
    ASSERT_FALSE(error.empty()) << text;
    for (unsigned char c : error) EXPECT_TRUE(c >= 0x20 && c < 0x7f) << error;
  }
}

TEST(ParseJson, RefusesDuplicateKeysAtAnyLevel) {
  EXPECT_EQ(parse_error(R"({"a": 1, "b": 2, "a": 3})"),
            "a.json: byte 20: the key \"a\" appears twice in one object; keep one of them");
  EXPECT_NE(parse_error(R"([{"x": {"k": 1, "k": 1}}])"), "");
  EXPECT_NE(parse_error(R"({"a": 1, "\u0061": 2})"), "") << "escaped form of the same key";
  EXPECT_EQ(parse_error(R"({"a": {"a": 1}, "b": {"a": 1}})"), "");
}

TEST(ParseJson, KeepsTheOrderOfKeysWhereAsked) {
  const std::string text = R"({"b":{"z":1,"a":[{"y":2,"x":{}}]},"a":"c"})";
  EXPECT_EQ(parse_ordered_json(text, "a.json").dump(), text);
  for (const char* twice : {R"({"a":1,"b":2,"a":3})", R"([{"a":{"c":1,"c":1}}])"}) {
    const std::string error = error_of([&, t = twice] { parse_ordered_json(t, "a.json"); });
    EXPECT_EQ(error, parse_error(twice));
    EXPECT_NE(error.find("appears twice"), std::string::npos) << error;
  }
}

TEST(ParseJson, GivesClientsNoAdviceAboutFiles) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_ordered_json(text, "body"); });
  };
  EXPECT_EQ(error(std::string("{}\0", 3)), "body: byte 3: not valid JSON: a NUL byte; repair it");
  EXPECT_EQ(error(nested(kMaxJsonDepth + 1)),
            "body: byte 65: nested deeper than 64 levels; nest less");
  EXPECT_EQ(error("\xef\xbb\xbf{}"),
            "body: byte 1: not valid JSON: a byte order mark; leave it out");
  EXPECT_EQ(parse_error("\xef\xbb\xbf{}"), "") << "editors put it before files";
}

// A list of lists inside of this many objects, each with a second member after it.
std::string list_in_objects(int num_lists, int num_objects) {
  std::string text;
  for (int i = 0; i < num_objects; ++i) text += "{\"a\":";
  text += "[";
  for (int i = 0; i < num_lists; ++i) text += "[],";
  text += "7]";
  for (int i = 0; i < num_objects; ++i) text += ",\"b\":1}";
  return text;
}

// The processor time of parsing, in which a copy of the list for each object would be 60 times that
// of the list alone.
TEST(ParseJson, CopiesNothingThatIsInsideOfObjects) {
  constexpr int kLists = 300'000;
  constexpr int kObjects = 60;
  const auto timed = [](const std::string& text, nlohmann::ordered_json* root) {
    const std::clock_t start = std::clock();
    *root = parse_ordered_json(text, "body");
    return std::clock() - start;
  };
  nlohmann::ordered_json list;
  nlohmann::ordered_json root;
  const std::clock_t alone = timed(list_in_objects(kLists, 0), &list);
  EXPECT_LT(timed(list_in_objects(kLists, kObjects), &root), 10 * alone);
  const nlohmann::ordered_json* inner = &root;
  for (int i = 0; i < kObjects; ++i) {
    EXPECT_EQ(inner->at("b"), 1);
    inner = &inner->at("a");
  }
  EXPECT_EQ(*inner, list);
}

TEST(IntegerIn, TakesNoOtherKindOfValue) {
  const auto in = [](const char* text, int64_t min, int64_t max) {
    return integer_in(parse_ordered_json(text, "body"), min, max);
  };
  EXPECT_EQ(in("-9223372036854775808", kInt64Min, kInt64Max), kInt64Min);
  EXPECT_EQ(in("9223372036854775807", kInt64Min, kInt64Max), kInt64Max);
  EXPECT_EQ(in("3", 3, 3), 3);
  for (const char* text : {"9223372036854775808", "18446744073709551615", "1e3", "3.0", "3.9",
                           "1e308", "true", "null", "\"3\"", "[3]", "{}"}) {
    EXPECT_EQ(in(text, kInt64Min, kInt64Max), std::nullopt) << text;
  }
  EXPECT_EQ(in("2", 3, 4), std::nullopt);
  EXPECT_EQ(in("5", 3, 4), std::nullopt);
}

TEST(ParseJson, LimitsDepthWithoutRecursion) {
  EXPECT_EQ(parse_error(nested(kMaxJsonDepth)), "");
  EXPECT_EQ(parse_error(nested(kMaxJsonDepth + 1)),
            "a.json: byte 65: nested deeper than 64 levels; no model file needs that");
  EXPECT_NE(parse_error(std::string(10'000'000, '[')), "");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_NE(parse_error(objects), "");
}

// A value takes at most a few hundred bytes, so a limit on their number bounds the memory.
TEST(ParseJson, LimitsTheNumberOfValues) {
  const auto list_of = [](size_t count) {
    std::string text(2 * count + 1, '0');
    for (size_t i = 0; i <= count; ++i) text[2 * i] = ',';
    text.front() = '[', text.back() = ']';
    return text;
  };
  const std::string error = parse_error(list_of(kMaxJsonValues));  // the list itself counts too
  EXPECT_NE(error.find("more than 8000000 values"), error.npos) << error;
  EXPECT_EQ(parse_error(list_of(100'000)), "");
}

TEST(ParseJson, KeepsErrorsShort) {
  EXPECT_LT(parse_error("\"" + std::string(1'000'000, 'x')).size(), 600u);
}

class JsonObjectTest : public ::testing::Test {
 protected:
  const nlohmann::json document_ = parse_json(
      R"({"i": -3, "big": 18446744073709551615, "f": 0.5, "whole": 4.0, "b": true, "s": "text",
          "n": null, "o": {"x": 1}, "ids": [1, 2], "mixed": [1, "a"], "words": ["a", "b"]})",
      "c.json");
  const JsonObject object_{document_, "c.json"};
};

TEST_F(JsonObjectTest, ReadsTypedValues) {
  EXPECT_EQ(object_.get_int("i", -3, 0), -3);
  EXPECT_EQ(object_.get_double("f", 0, 1), 0.5);
  EXPECT_EQ(object_.get_double("i", -10, 1), -3.0) << "an integer is a number";
  EXPECT_TRUE(object_.get_bool("b"));
  EXPECT_EQ(object_.get_string("s"), "text");
  EXPECT_EQ(object_.get_object("o").get_int("x", 0, 1), 1);
  EXPECT_EQ(object_.find_ints("ids", 0, 9), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(object_.find_ints("i", -9, 9), (std::vector<int64_t>{-3}));
  EXPECT_EQ(object_.find_strings("words"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(object_.keys().size(), 11u);
}

TEST_F(JsonObjectTest, TakesNullForAbsent) {
  for (const char* key : {"n", "absent"}) {
    EXPECT_FALSE(object_.has(key));
    EXPECT_FALSE(object_.find_int(key, 0, 1).has_value());
    EXPECT_FALSE(object_.find_double(key, 0, 1).has_value());
    EXPECT_FALSE(object_.find_bool(key).has_value());
    EXPECT_FALSE(object_.find_string(key).has_value());
    EXPECT_FALSE(object_.find_object(key).has_value());
    EXPECT_TRUE(object_.find_ints(key, 0, 1).empty());
    EXPECT_TRUE(object_.find_strings(key).empty());
  }
}

TEST_F(JsonObjectTest, NamesFileKeyValueAndRange) {
  EXPECT_EQ(error_of([&] { object_.get_int("i", 1, 8); }),
            "c.json: i is -3; it must be an integer from 1 to 8");
  EXPECT_EQ(error_of([&] { object_.get_int("n", 1, 8); }),
            "c.json: n is missing; it must be an integer from 1 to 8");
  EXPECT_EQ(error_of([&] { object_.get_object("o").get_string("x"); }),
            "c.json: o: x is 1; it must be a string");
  EXPECT_EQ(error_of([&] { object_.get_string("o"); }),
            "c.json: o is an object of 1; it must be a string");
}

TEST_F(JsonObjectTest, NeverWrapsOrConverts) {
  EXPECT_NE(error_of([&] { object_.get_int("big", kInt64Min, kInt64Max); }), "");
  EXPECT_NE(error_of([&] { object_.get_int("whole", 0, 9); }), "");
  EXPECT_NE(error_of([&] { object_.get_int("b", 0, 9); }), "");
  EXPECT_NE(error_of([&] { object_.get_double("s", 0, 9); }), "");
  EXPECT_NE(error_of([&] { object_.get_bool("i"); }), "");
  EXPECT_NE(error_of([&] { object_.get_double("f", 0.6, 1); }), "");
  EXPECT_NE(error_of([&] { object_.find_ints("mixed", 0, 9); }), "");
  EXPECT_NE(error_of([&] { object_.find_strings("ids"); }), "");
  EXPECT_NE(error_of([&] { object_.find_object("ids"); }), "");
}

TEST(JsonObject, RefusesADocumentThatIsNoObject) {
  const nlohmann::json list = parse_json("[1]", "c.json");
  EXPECT_EQ(error_of([&] { JsonObject(list, "c.json"); }),
            "c.json: found a list of 1 where an object {...} must be; is it the right file?");
}

TEST(ReadJsonFile, NamesAPathThatCannotBeRead) {
  for (const char* path : {"/nonexistent/x.json", "/"}) {
    try {
      read_json_file(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace sluice
