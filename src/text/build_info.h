// The source revision that this program was built from; shown by --version and by benchmarks.
//
// CMake writes build_info.cc from build_info.cc.in when it configures. Thread rule: constants.
#pragma once

#include <string_view>

namespace sluice {

std::string_view build_version();  // "0.1.0"
std::string_view build_commit();   // `git describe`, or "unknown" outside a checkout
std::string_view build_type();     // "Release", with the sanitizers if there are any

}  // namespace sluice
