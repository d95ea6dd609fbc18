// The rules of a grammar for what a request asks for.
//
// Used when a request is checked, on its thread. Thread rule: free functions.
#pragma once

#include <string>
#include <vector>

#include "sluice/structured_output.h"

namespace sluice {

// Texts of requests beyond this are refused.
inline constexpr size_t kMaxStructureBytes = 1 << 20;

struct StructureRules {
  std::string rules;                 // EBNF, from "root" on
  std::vector<std::string> ignored;  // of a lenient schema: what is not enforced, one line each
};

// Errors: kInvalidArgument that names what is wrong or not supported, and where.
StructureRules structure_rules(const StructuredOutput& structure);

}  // namespace sluice
