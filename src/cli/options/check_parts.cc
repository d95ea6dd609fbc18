// Errors of options that contradict each other.
#include "cli/options/check_parts.h"

#include "core/error.h"

namespace sluice::cli {

void require_model(const std::string& model) {
  if (!model.empty()) return;
  fail(ErrorCode::kInvalidArgument,
       "no model given; add --model DIR or set SLUICE_MODEL (models/needle is a small one)");
}

void refuse_given(const Given& given, std::initializer_list<const char*> names,
                  const std::string& why) {
  for (const char* name : names) {
    const auto found = given.find(name);
    if (found == given.end()) continue;
    fail(ErrorCode::kInvalidArgument, "{} is given, but {}", found->second, why);
  }
}

void refuse_both(const Given& given, const char* winner, const char* loser) {
  const auto is_word = [&](const char* name) {
    const auto found = given.find(name);
    return found != given.end() && found->second == name;
  };
  if (!is_word(winner) || !is_word(loser)) return;
  fail(ErrorCode::kInvalidArgument, "{} is given, but {} is used instead; leave one of them out",
       loser, winner);
}

}  // namespace sluice::cli
