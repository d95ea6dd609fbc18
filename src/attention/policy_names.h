// What the table of policies says about a name, without making a policy.
//
// Used by comparisons of several policies, which give each the options that it uses. Thread rule:
// pure functions.
#pragma once

#include <string_view>

namespace sluice {

// Whether a policy that `name` names ("xattention+quest") uses the option ("sparse_stride").
// Errors: kInvalidArgument for an unknown name, listing all names.
bool policies_use(std::string_view name, std::string_view option);

}  // namespace sluice
