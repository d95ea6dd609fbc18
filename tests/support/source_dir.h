// Where the repository is, for tests that read its models and golden files.
//
// The build sets it; the environment variable SLUICE_SOURCE_DIR overrides it for test programs that
// were copied to another machine (tools/gpu/pack.sh). One file is compiled with the path, so that
// other checkouts find the objects of all other tests in the compiler cache. Thread rule: any
// thread.
#pragma once

#include <filesystem>

namespace sluice::testing {

std::filesystem::path source_dir();

}  // namespace sluice::testing
