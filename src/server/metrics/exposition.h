// Exposition: writes metrics in the text format 0.0.4 of Prometheus.
//
// Used by everything that has metrics to show. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "server/metrics/instruments.h"

namespace sluice::metrics {

inline constexpr std::string_view kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

// Labels in the form of the text format, escaped once: name="value",name="value".
class Labels {
 public:
  // Adds a label and returns the labels. The value may hold any bytes: backslash, quote and newline
  // are escaped, and what is not UTF-8 becomes U+FFFD.
  // REQUIRES: the name is that of a label ([a-zA-Z_][a-zA-Z0-9_]*) and new.
  Labels& add(std::string_view name, std::string_view value);

  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Exposition {
 public:
  // `common` are the first labels of all samples.
  explicit Exposition(Labels common) : common_(std::move(common)) {}

  // Begins a metric; the samples that follow are of it. Its help is escaped.
  // REQUIRES: the name is that of a metric and new; that of a counter ends in "_total".
  void counter(std::string_view name, std::string_view help) { begin(name, "counter", help); }
  // The same for a counter of one sample, which has this value.
  void counter(std::string_view name, std::string_view help, int64_t value) {
    counter(name, help);
    sample(static_cast<double>(value));
  }
  void gauge(std::string_view name, std::string_view help) { begin(name, "gauge", help); }

  // A value of the counter or gauge. REQUIRES: no sample of it has the same labels.
  void sample(double value, const Labels& own = {});

  // A metric with its samples: the buckets, le="+Inf" last, the sum and the count.
  void histogram(std::string_view name, std::string_view help, const Histogram::Reading& reading);

  // All lines so far.
  const std::string& text() const { return text_; }

 private:
  void begin(std::string_view name, std::string_view type, std::string_view help);
  void append(std::string_view suffix, const Labels& own, double value);

  Labels common_;
  std::string name_;  // of the metric that samples belong to
  std::string text_;
};

// A bound of a bucket as Go and Python write it in `le`: "0.001", "1.0", "1e+06", so that queries
// written for vLLM match.
std::string bound_text(double bound);

}  // namespace sluice::metrics
