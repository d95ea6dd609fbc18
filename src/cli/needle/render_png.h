// A PNG from an SVG by the program rsvg-convert, if the machine has it.
//
// Used by report.cc. Thread rule: main thread.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::cli {

// Returns "" when `png` was written, or one line that says how to get the program.
// Errors: kIo when the program failed, as on a full disk; an older `png` stays whole then.
std::string render_png(const std::filesystem::path& svg, const std::filesystem::path& png);

}  // namespace sluice::cli
