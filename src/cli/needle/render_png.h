// A PNG from an SVG by the program rsvg-convert, if the machine has it.
//
// Used by report.cc. Thread rule: main thread.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::cli {

// Returns "" when `png` was written, else one line that says why not and what to do.
std::string render_png(const std::filesystem::path& svg, const std::filesystem::path& png);

}  // namespace sluice::cli
