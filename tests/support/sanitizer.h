// Whether this build has a sanitizer, which makes a test 2 to 20 times slower.
//
// Tests use it to run less: fewer similar cases, shorter contexts where only a GPU needs long ones.
// Thread rule: any thread.
#pragma once

#include <string_view>

namespace sluice {

inline constexpr bool kSanitized = sizeof(SLUICE_SANITIZER) > 1;  // a name and its terminator
inline constexpr bool kThreadSanitized = std::string_view(SLUICE_SANITIZER) == "thread";

}  // namespace sluice
