// Automata: regular expressions, products, and the texts of numbers within bounds.
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/automata/regex.h"
#include "grammar/schema/formats.h"
#include "grammar/schema/number_texts.h"
#include "sluice/error.h"

namespace sluice {
namespace {

struct RegexCase {
  const char* regex;
  std::vector<std::string> whole;  // texts that it matches as a whole
  std::vector<std::string> not_whole;
  std::vector<std::string> within = {};  // texts that have a part that it matches
  std::vector<std::string> not_within = {};
};

TEST(Regex, MatchesAsEcma262Says) {
  const std::vector<RegexCase> cases = {
      {"abc", {"abc"}, {"ab", "abcd", ""}, {"xabcx"}, {"ab"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}, {"zzz"}},
      {"^a", {"a"}, {"ba"}, {"abc"}, {"ba"}},
      {"a$", {"a"}, {"ab"}, {"ba"}, {"ab"}},
      {"^$", {""}, {"a"}, {""}, {"a"}},
      {"(^a|b)c", {"ac", "bc"}, {"c"}, {"xbcx", "acx"}, {"xac"}},
      {"a(b|$)", {"ab", "a"}, {"ac"}, {"xa", "xabx"}, {"ax"}},
      {"[a-c]{2,3}", {"ab", "abc"}, {"a", "abca", "ad"}},
      {"(ab)*?c+", {"c", "ababcc"}, {"ab", "abac"}},
      {"x{0}y{1,}", {"y", "yyy"}, {"xy", ""}},
      {R"(\d\w\s\D\W\S)", {"1_ a-b"}, {"1_ 1-b", "a_ a-b"}},
      {R"([\d\-\]x-])", {"1", "-", "]", "x"}, {"\\", "a"}},
      {R"([^a\n])", {"b", "\xC3\xA9", "\xF0\x9F\x92\xA9"}, {"a", "\n", "bb"}},
      {".", {"a", "\xE2\x82\xAC"}, {"\n", "\r", ""}},
      {R"(\u00e9\xe9\u{1F4A9})", {"\xC3\xA9\xC3\xA9\xF0\x9F\x92\xA9"}, {"ee"}},
      {R"((?:a(?<name>b))\.)", {"ab."}, {"abc"}},
      {R"([^\s\S])", {}, {"", "a"}},
      {"]}", {"]}"}, {"]"}},
      {R"(^(?=.*\d)(?!admin).{3,}$)", {"a1b", "bad1"}, {"abc", "a1", "admin1"}},
      {R"(^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$)", {"1", "-0.5", "+.5"}, {"", "-", ".", "1.2.3"}},
      {"^(?=a|b)[^c]*", {"a", "bx"}, {"xa", "ac"}, {"ac"}, {"ca"}},
  };
  for (const RegexCase& c : cases) {
    const Automaton whole = of_regex(c.regex, RegexUse::kWhole);
    const Automaton within = of_regex(c.regex, RegexUse::kAnywhere);
    for (const auto& text : c.whole) EXPECT_TRUE(whole.accepts(text)) << c.regex << " " << text;
    for (const auto& text : c.not_whole)
      EXPECT_FALSE(whole.accepts(text)) << c.regex << " " << text;
    for (const auto& text : c.within) EXPECT_TRUE(within.accepts(text)) << c.regex << " " << text;
    for (const auto& text : c.not_within) {
      EXPECT_FALSE(within.accepts(text)) << c.regex << " " << text;
    }
  }
}

TEST(Regex, RefusesWhatIsNotRegularOrWrong) {
  for (const char* regex :
       {"(?=a)",           "(?!a)",        "^(?=a)b|c", "^(?!a|^b)c",
        "^a(?=b)",         "^(?=(?=a)b)c", "^(?=a",     "(?<=a)b",
        "(?<!a)b",         R"((a)\1)",     R"(\k<n>)",  R"(\bword\b)",
        R"(\p{L})",        "(?i)a",        "a**",       "a{2",
        "a{3,2}",          "(a",           "a)",        "[a",
        "[z-a]",           "*a",           R"(\)",      R"(\q)",
        R"(\u12)",         R"(\ud800)",    "^*",        "((((a{100}){100}){100}){100})",
        "(a|b)*a(a|b){40}"}) {
    try {
      of_regex(regex, RegexUse::kWhole);
      ADD_FAILURE() << regex;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << regex;
    }
  }
}

TEST(Automaton, CombinesAsSetsDo) {
  const std::vector<std::string> texts = {"",    "a",        "b",   "ab", "ba",
                                          "abb", "\xC3\xA9", "aab", "bbb"};
  const std::vector<std::string> regexes = {"a*b*", "[^a]*", "(a|b){1,2}", "b.*", "x"};
  for (const auto& x : regexes) {
    for (const auto& y : regexes) {
      const Automaton a = of_regex(x, RegexUse::kWhole);
      const Automaton b = of_regex(y, RegexUse::kWhole);
      for (const auto& text : texts) {
        EXPECT_EQ(intersected(a, b).accepts(text), a.accepts(text) && b.accepts(text)) << x << y;
        EXPECT_EQ(united(a, b).accepts(text), a.accepts(text) || b.accepts(text)) << x << y;
        EXPECT_EQ(without(a, b).accepts(text), a.accepts(text) && !b.accepts(text)) << x << y;
      }
    }
  }
  EXPECT_TRUE(
      intersected(of_regex("a+", RegexUse::kWhole), of_regex("b+", RegexUse::kWhole)).empty());
  EXPECT_TRUE(of_lengths(2, 3).accepts("\xC3\xA9\xC3\xA9"));
  EXPECT_FALSE(of_lengths(2, 3).accepts("\xC3\xA9"));
  EXPECT_TRUE(of_lengths(2, -1).accepts(std::string(99, 'x')));
  EXPECT_TRUE(of_lengths(2, 1).empty());
}

// Every decimal with up to two digits on each side, against its value.
TEST(NumberTexts, AreThoseWithinTheBounds) {
  const std::vector<double> bounds = {-12, -10.5, -1, -0.25, 0, 0.07, 0.1, 1, 2.5, 9.99, 10, 47};
  std::vector<std::string> texts;
  for (int whole = 0; whole < 100; whole += whole < 13 ? 1 : 9) {
    texts.push_back(fmt::format("{}", whole));
    for (const char* fraction :
         {"0", "00", "07", "08", "1", "10", "25", "26", "5", "50", "9", "99"}) {
      texts.push_back(fmt::format("{}.{}", whole, fraction));
    }
  }
  for (const double min : bounds) {
    for (const double max : bounds) {
      for (const bool is_exclusive : {false, true}) {
        const Automaton in = number_texts({.min = NumberBound{*decimal_of(min), is_exclusive},
                                           .max = NumberBound{*decimal_of(max), is_exclusive}});
        for (const auto& text : texts) {
          for (const double sign : {1., -1.}) {
            const double value = sign * std::stod(text);
            if (sign < 0 && value == 0) continue;
            const bool is_in =
                is_exclusive ? value > min && value < max : value >= min && value <= max;
            const std::string signed_text = (sign < 0 ? "-" : "") + text;
            ASSERT_EQ(in.accepts(signed_text), is_in)
                << signed_text << " in " << min << ".." << max;
          }
        }
      }
    }
  }
}

TEST(NumberTexts, HaveWholeAndMultipleForms) {
  const auto bound = [](double value) { return NumberBound{*decimal_of(value), false}; };
  for (const int64_t multiple : {1, 2, 7, 12, 1000}) {
    const Automaton in = number_texts({.min = bound(-1500),
                                       .max = bound(2100.5),
                                       .kind = NumberKind::kInteger,
                                       .multiples = {*multiple_of(static_cast<double>(multiple))}});
    for (int64_t value = -2500; value < 2500; ++value) {
      const bool is_in = value >= -1500 && value <= 2100 && value % multiple == 0;
      ASSERT_EQ(in.accepts(fmt::format("{}", value)), is_in) << value << " of " << multiple;
    }
    EXPECT_FALSE(in.accepts("-0"));
    EXPECT_FALSE(in.accepts("0.0"));
    EXPECT_FALSE(in.accepts("00"));
  }
  EXPECT_TRUE(number_texts({.min = bound(3)}).accepts("123456789012345678901234567890"));
  EXPECT_FALSE(decimal_of(1e30).has_value());
  EXPECT_EQ(decimal_of(-9007199254740991.)->magnitude.whole, "9007199254740991");
  EXPECT_FALSE(decimal_of(0.1234567890123456).has_value());
}

// Every decimal with up to three digits after the point, against its value in units of the last.
TEST(NumberTexts, HaveMultiplesExclusionsAndFractions) {
  for (const double step : {0.25, 1.5, 0.001, 3., 0.1}) {
    Multiple multiple = *multiple_of(step);
    const Automaton in = number_texts({.multiples = {multiple}});
    multiple.is_forbidden = true;
    const Automaton out = number_texts({.multiples = {multiple}});
    const auto units = static_cast<int64_t>(std::lround(step * 1000));
    for (int64_t value = -3000; value <= 3000; value += value % 7 == 0 ? 1 : 5) {
      const std::string text = fmt::format("{}{}.{:03}", value < 0 ? "-" : "",
                                           std::abs(value) / 1000, std::abs(value) % 1000);
      const bool is_in = value % units == 0;
      EXPECT_EQ(is_multiple(decimal_of_text(text), *multiple_of(step)), is_in) << text << step;
      if (text == "-0.000") continue;
      EXPECT_EQ(out.accepts(text), !is_in) << text << " of " << step;
      if (multiple.places > 0) {
        EXPECT_EQ(in.accepts(text), is_in) << text << " of " << step;
      }
    }
  }
  EXPECT_FALSE(multiple_of(1001).has_value());
  EXPECT_FALSE(multiple_of(0.1234567).has_value());
  EXPECT_EQ(multiple_of(1e-8)->places, 8);
  const Automaton some = number_texts({.excluded = {*decimal_of(1), *decimal_of(-2.5)}});
  for (const char* text : {"0", "1.5", "-1", "10", "2.5", "-2.05"}) EXPECT_TRUE(some.accepts(text));
  for (const char* text : {"1", "1.0", "-2.5", "-2.500"}) EXPECT_FALSE(some.accepts(text));
  const Automaton fractions = number_texts({.kind = NumberKind::kFraction});
  for (const char* text : {"0.5", "-1.05", "10.10"}) EXPECT_TRUE(fractions.accepts(text)) << text;
  for (const char* text : {"0", "1.0", "-3", "00.5"}) EXPECT_FALSE(fractions.accepts(text)) << text;
}

// 253 characters in all, so many labels are short.
TEST(Formats, HostsHaveAnEnd) {
  const auto host = [](int num_labels, size_t size) {
    std::string text(size, 'a');
    for (int i = 1; i < num_labels; ++i) text += "." + std::string(size, 'a');
    return text;
  };
  const Automaton& texts = format_texts("hostname");
  EXPECT_TRUE(texts.accepts(host(3, 63)));
  EXPECT_TRUE(texts.accepts(host(12, 20)));
  EXPECT_FALSE(texts.accepts(host(1, 64)));
  EXPECT_FALSE(texts.accepts(host(4, 63)));
  EXPECT_FALSE(texts.accepts(host(13, 20)));
}

TEST(Formats, AcceptTextsOfTheirKind) {
  const std::vector<std::tuple<const char*, const char*, const char*>> cases = {
      {"date", "2024-02-29", "2023-02-29"},
      {"date", "2000-02-29", "1900-02-29"},
      {"date", "2024-12-31", "2024-11-31"},
      {"time", "23:59:59Z", "24:00:00Z"},
      {"date-time", "2024-01-01T00:00:00.5+01:00", "2024-01-01 00:00:00"},
      {"duration", "P1Y2M3DT4H5M6S", "P1D2H"},
      {"email", "a.b+c@example.org", "a@b@c"},
      {"hostname", "a-b.example", "-a.example"},
      {"ipv4", "255.0.10.1", "256.0.0.1"},
      {"ipv6", "1:2::8", "1::2::3"},
      {"ipv6", "::", "1:2:3:4:5:6:7"},
      {"ipv6", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8:9"},
      {"uri", "https://user@example.org:8080/a/b%20c?x=1&y#z", "/a/b"},
      {"uri", "urn:isbn:0", "http://a b"},
      {"uri", "http://[::1]/", "http://[::1"},
      {"uri", "mailto:a@b", "http://\xC3\xA9"},
      {"uri-reference", "../a?b", "a:b:\\"},
      {"uri-reference", "", "%zz"},
      {"iri", "http://\xC3\xA9.org/\xC3\xA9", "\xC3\xA9"},
      {"iri-reference", "\xC3\xA9/a", "a b"},
      {"json-pointer", "/a~1b//0", "a"},
      {"json-pointer", "", "/~2"},
      {"relative-json-pointer", "1/a", "/a"},
      {"relative-json-pointer", "0#", "01"},
      {"uri-template", "http://a/{+x,y:3}{?z*}", "http://a/{x"},
      {"uuid", "2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08aa9811eab4aa73b441d16380"},
  };
  for (const auto& [format, good, bad] : cases) {
    EXPECT_TRUE(format_texts(format).accepts(good)) << format << " " << good;
    EXPECT_FALSE(format_texts(format).accepts(bad)) << format << " " << bad;
  }
}

}  // namespace
}  // namespace sluice
