// The colour of a share from 0 to 1: one sequential scale for heat maps and terminal tables.
//
// Lightness falls evenly from amber to deep blue, so the order is visible in greyscale and with any
// colour blindness. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::eval {

struct Rgb {
  uint8_t red = 0, green = 0, blue = 0;
};

// `share` outside [0, 1] is clamped.
Rgb share_colour(double share);
// Black or white, whichever contrasts more with `background` (WCAG relative luminance).
Rgb text_colour_on(Rgb background);
std::string hex(Rgb colour);  // "#1a2b3c"
// The escape sequence that sets background and text of a terminal cell.
std::string terminal_colours(double share);

}  // namespace sluice::eval
