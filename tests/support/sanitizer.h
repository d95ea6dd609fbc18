// Whether this build watches itself with a sanitizer, which makes a test 2 to 20 times slower.
//
// Tests use it to be smaller there: fewer of equal cases, contexts that are long for a GPU only.
// Thread rule: any thread.
#pragma once

namespace sluice {

inline constexpr bool kSanitized = sizeof(SLUICE_SANITIZER) > 1;  // a name and its end

}  // namespace sluice
