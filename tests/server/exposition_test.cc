// The text format of metrics: exact lines, buckets, and values of labels that try to break it.
#include "server/metrics/exposition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "server/metrics/bucket_bounds.h"

namespace sluice::metrics {
namespace {

TEST(Exposition, WritesEveryKindOfMetric) {
  Histogram sizes({0.001, 0.5, 1, 1e6});
  sizes.observe(0.25);
  sizes.observe(0.5);  // a bound belongs to its bucket
  sizes.observe(2, 3);
  sizes.observe(2e6);
  Exposition out(Labels().add("model_name", "m").add("engine", "0"));
  out.counter("a_total", "Counts.");
  out.sample(3);
  out.gauge("b", "A back\\slash, a \"quote\" and\na line.");
  out.sample(0.5, Labels().add("place", "host"));
  out.sample(-1, Labels().add("place", "device"));
  out.histogram("c", "Sizes.", sizes.read());
  EXPECT_EQ(out.text(),
            "# HELP a_total Counts.\n"
            "# TYPE a_total counter\n"
            "a_total{model_name=\"m\",engine=\"0\"} 3\n"
            "# HELP b A back\\\\slash, a \"quote\" and\\na line.\n"
            "# TYPE b gauge\n"
            "b{model_name=\"m\",engine=\"0\",place=\"host\"} 0.5\n"
            "b{model_name=\"m\",engine=\"0\",place=\"device\"} -1\n"
            "# HELP c Sizes.\n"
            "# TYPE c histogram\n"
            "c_bucket{model_name=\"m\",engine=\"0\",le=\"0.001\"} 0\n"
            "c_bucket{model_name=\"m\",engine=\"0\",le=\"0.5\"} 2\n"
            "c_bucket{model_name=\"m\",engine=\"0\",le=\"1.0\"} 2\n"
            "c_bucket{model_name=\"m\",engine=\"0\",le=\"1e+06\"} 5\n"
            "c_bucket{model_name=\"m\",engine=\"0\",le=\"+Inf\"} 6\n"
            "c_sum{model_name=\"m\",engine=\"0\"} 2000006.75\n"
            "c_count{model_name=\"m\",engine=\"0\"} 6\n");
}

TEST(Exposition, WritesValuesThatAreNoOrdinaryNumbers) {
  Exposition out{Labels()};
  out.gauge("a", "");
  out.sample(std::numeric_limits<double>::infinity());
  out.sample(-std::numeric_limits<double>::infinity());
  out.sample(std::nan(""));
  out.sample(9007199254740991.0);  // the largest whole number below which all have a double
  out.sample(0.1);
  EXPECT_EQ(out.text(),
            "# HELP a \n# TYPE a gauge\na +Inf\na -Inf\na NaN\na 9007199254740991\na 0.1\n");
}

TEST(Exposition, EscapesLabels) {
  const auto text = [](std::string_view value) { return Labels().add("a", value).text(); };
  EXPECT_EQ(text("x\"} 1\nb{"), "a=\"x\\\"} 1\\nb{\"");
  EXPECT_EQ(text("\\n"), "a=\"\\\\n\"");
  EXPECT_EQ(text("\\"), "a=\"\\\\\"");
  EXPECT_EQ(text(""), "a=\"\"");
  EXPECT_EQ(text("\r\t\x01"), "a=\"\r\t\x01\"");  // the format has no escapes for these
  EXPECT_EQ(text("Grüße 模型 🚀"), "a=\"Grüße 模型 🚀\"");
}

TEST(Exposition, ReplacesWhatIsNotUtf8) {
  const auto text = [](std::string_view value) { return Labels().add("a", value).text(); };
  EXPECT_EQ(text("x\xffy"), "a=\"x\uFFFDy\"");
  EXPECT_EQ(text("\xc3"), "a=\"\uFFFD\"");          // cut in a character
  EXPECT_EQ(text("\xc3\"b"), "a=\"\uFFFD\\\"b\"");  // cut before a quote, which is escaped still
  EXPECT_EQ(text("\xc0\xaf").find('\xc0'), std::string::npos);      // overlong
  EXPECT_EQ(text("\xed\xa0\x80").find('\xed'), std::string::npos);  // a surrogate
}

TEST(Exposition, BoundsLookLikeThoseOfVllm) {
  std::vector<std::string> texts;
  for (const double bound : token_bounds(10'000'000)) texts.push_back(bound_text(bound));
  EXPECT_EQ(texts.front(), "1.0");
  EXPECT_EQ(texts.at(17), "500000.0");
  EXPECT_EQ(texts.at(18), "1e+06");
  EXPECT_EQ(texts.at(20), "5e+06");
  EXPECT_EQ(texts.back(), "1e+07");
  EXPECT_EQ(bound_text(2'500'000), "2.5e+06");
  EXPECT_EQ(bound_text(0.075), "0.075");
}

TEST(BucketBounds, OfTokensEndAtTheLongestContext) {
  EXPECT_EQ(token_bounds(100), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
  EXPECT_EQ(token_bounds(99), (std::vector<double>{1, 2, 5, 10, 20, 50}));
  EXPECT_EQ(token_bounds(1), (std::vector<double>{1}));
  EXPECT_EQ(first_token_bounds().front(), 0.001);
  EXPECT_EQ(first_token_bounds().back(), 2560);
}

// Each value falls below a bound exactly if it is counted there, also when both are equal.
TEST(Histogram, IsCumulative) {
  const std::vector<double> bounds = first_token_bounds();
  Histogram histogram(bounds);
  std::vector<double> values = {0, 1e-9, 3000, 1e9};
  for (const double bound : bounds) {
    values.insert(values.end(), {bound, std::nextafter(bound, 0), std::nextafter(bound, 1e9)});
  }
  double sum = 0;
  for (const double value : values) {
    histogram.observe(value);
    sum += value;
  }
  const Histogram::Reading reading = histogram.read();
  ASSERT_EQ(reading.cumulative.size(), bounds.size());
  for (size_t i = 0; i < bounds.size(); ++i) {
    const auto below = [&](double value) { return value <= bounds[i]; };
    EXPECT_EQ(reading.cumulative[i], std::count_if(values.begin(), values.end(), below)) << i;
  }
  EXPECT_EQ(reading.count, static_cast<int64_t>(values.size()));
  EXPECT_EQ(reading.sum, sum);
}

// While two threads observe, each reading rises from bucket to bucket and from reading to reading,
// and nothing is lost in the end.
TEST(Histogram, IsReadWhileThreadsObserve) {
  constexpr int kNum = 20'000;
  Histogram histogram({1, 2});
  const auto observe = [&] {
    for (int i = 0; i < kNum; ++i) histogram.observe(i % 4);  // 0, 1 | 2 | 3
  };
  std::thread first(observe);
  std::thread second(observe);
  std::vector<int64_t> before = {0, 0, 0};
  while (before[2] < 2 * kNum) {
    const Histogram::Reading now = histogram.read();
    ASSERT_LE(now.cumulative[0], now.cumulative[1]);
    ASSERT_LE(now.cumulative[1], now.count);
    ASSERT_LE(before[0], now.cumulative[0]);
    ASSERT_LE(before[2], now.count);
    before = {now.cumulative[0], now.cumulative[1], now.count};
  }
  first.join();
  second.join();
  EXPECT_EQ(before, (std::vector<int64_t>{kNum, kNum / 2 * 3, 2 * kNum}));
  EXPECT_EQ(histogram.read().sum, 2.0 * kNum * 1.5);
}

}  // namespace
}  // namespace sluice::metrics
