// Which source this program was built from; shown by --version and in every benchmark.
//
// build_info.cc is made from build_info.cc.in when CMake configures. Thread rule: constants.
#pragma once

#include <string_view>

namespace sluice::cli {

std::string_view build_version();  // "0.1.0"
std::string_view build_commit();   // `git describe`, or "unknown" outside a checkout
std::string_view build_type();     // "Release", with the sanitizers if there are any

}  // namespace sluice::cli
