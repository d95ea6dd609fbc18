// Converts an SVG to a PNG with the program rsvg-convert, if it is installed.
#pragma once

#include <filesystem>
#include <string>

namespace sluice::eval {

// Returns "" if `png` was written, or one line that says how to get the program.
// Errors: kIo if the program failed, for example on a full disk; an existing `png` stays unchanged.
std::string render_png(const std::filesystem::path& svg, const std::filesystem::path& png);

}  // namespace sluice::eval
