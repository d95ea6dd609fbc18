// SkippedTypes: the types of tools that a request has and the server does not, for its line in the
// log.
//
// Used by the readers of tools. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>

#include "core/printable.h"

namespace sluice::api {

// Each type once, printable, with commas. Only the first kMaxNamed are named: they come from
// clients, and lines of the log are short.
class SkippedTypes {
 public:
  static constexpr size_t kMaxNamed = 16;

  void add(const std::string& type) {
    if (seen_.size() >= kMaxNamed || !seen_.insert(type).second) return;
    if (!names_.empty()) names_ += ',';
    names_ += printable(type);
  }

  std::string take() { return std::move(names_); }

 private:
  std::set<std::string> seen_;
  std::string names_;
};

}  // namespace sluice::api
