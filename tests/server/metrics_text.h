// Reads a page of metrics back, by the published grammar of the text format alone.
//
// Used by the tests of pages. What breaks a rule of the format fails the test. Thread rule: none.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

namespace sluice::testing {

class MetricsText {
 public:
  // `model_name` is the value that every sample must have for that label, unescaped.
  MetricsText(std::string_view text, std::string model_name) : model_name_(std::move(model_name)) {
    EXPECT_TRUE(text.empty() || text.back() == '\n');
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size() - 1);
      read_line(std::string(text.substr(0, end)));
      text.remove_prefix(end + 1);
    }
  }

  // By name and own labels: "a_total" or "b{place=host}" (values unescaped, without quotes).
  const std::map<std::string, double>& samples() const { return samples_; }
  // Of each metric: "counter", "gauge" or "histogram".
  const std::map<std::string, std::string>& types() const { return types_; }

  double at(const std::string& sample) const {
    const auto found = samples_.find(sample);
    EXPECT_NE(found, samples_.end()) << sample;
    return found == samples_.end() ? -1 : found->second;
  }

 private:
  void read_line(const std::string& line) {
    if (line.starts_with("# HELP ")) {
      metric_ = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_EQ(types_.count(metric_), 0U) << "again: " << line;
    } else if (line.starts_with("# TYPE ")) {
      const std::string start = "# TYPE " + metric_ + " ";
      ASSERT_TRUE(line.starts_with(start)) << line;
      types_[metric_] = line.substr(start.size());
    } else {
      read_sample(line);
    }
  }

  void read_sample(const std::string& line) {
    const size_t name_end = line.find_first_of("{ ");
    ASSERT_NE(name_end, std::string::npos) << line;
    std::string key = line.substr(0, name_end);
    EXPECT_TRUE(belongs(key)) << line << " after " << metric_;
    size_t at = name_end;
    if (line[at] == '{') key += read_labels(line, ++at);
    ASSERT_LT(at, line.size()) << line;
    ASSERT_EQ(line[at], ' ') << line;
    char* end = nullptr;
    const double value = std::strtod(line.c_str() + at + 1, &end);
    EXPECT_EQ(*end, '\0') << line;
    EXPECT_TRUE(samples_.emplace(key, value).second) << "again: " << line;
  }

  bool belongs(const std::string& name) const {
    if (types_.count(metric_) == 0) return false;
    if (types_.at(metric_) != "histogram") return name == metric_;
    return name == metric_ + "_bucket" || name == metric_ + "_sum" || name == metric_ + "_count";
  }

  // The own labels as a part of the key; `at` is moved behind the closing brace.
  std::string read_labels(const std::string& line, size_t& at) {
    std::string own;
    std::map<std::string, std::string> common;
    while (at < line.size() && line[at] != '}') {
      const size_t equals = line.find("=\"", at);
      if (equals == std::string::npos) return "{no label}";
      const std::string name = line.substr(at, equals - at);
      EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string::npos) << line;
      at = equals + 2;
      const std::string value = read_value(line, at);
      if (name == "model_name" || name == "engine") {
        common[name] = value;
      } else {
        own += (own.empty() ? "" : ",") + name + "=" + value;
      }
      if (at < line.size() && line[at] == ',') ++at;
    }
    ++at;
    EXPECT_EQ(common["model_name"], model_name_);
    EXPECT_EQ(common["engine"], "0");
    return own.empty() ? "" : "{" + own + "}";
  }

  // `at` is moved behind the closing quote.
  static std::string read_value(const std::string& line, size_t& at) {
    std::string value;
    for (; at < line.size() && line[at] != '"'; ++at) {
      if (line[at] != '\\') {
        value += line[at];
        continue;
      }
      const char escaped = ++at < line.size() ? line[at] : '?';
      EXPECT_TRUE(escaped == '\\' || escaped == '"' || escaped == 'n') << line;
      value += escaped == 'n' ? '\n' : escaped;
    }
    ++at;
    return value;
  }

  const std::string model_name_;
  std::string metric_;
  std::map<std::string, std::string> types_;
  std::map<std::string, double> samples_;
};

}  // namespace sluice::testing
