// Interpolates the scale's stops in OKLab.
#include "eval/colour_scale.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace sluice::eval {
namespace {

// Colours of the shares 0, 1/4, ... 1; between them linear in OKLab, where equal distances look
// equal.
constexpr std::array<Rgb, 5> kStops = {{{0xff, 0xc8, 0x57},
                                        {0xf2, 0x8a, 0x62},
                                        {0xc0, 0x57, 0x8a},
                                        {0x6b, 0x44, 0x9f},
                                        {0x23, 0x3a, 0x82}}};

// A colour in OKLab: lightness and two colour axes.
struct Lab {
  double l, a, b;
};

// Decodes an sRGB channel to linear light, [0, 1]. Source: IEC 61966-2-1.
double to_linear(uint8_t channel) {
  const double c = channel / 255.0;
  return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
}

// Encodes linear light as an sRGB channel. Interpolated colours may leave [0, 1], so it clamps.
uint8_t from_linear(double c) {
  const double encoded = c <= 0.0031308 ? c * 12.92 : 1.055 * std::pow(c, 1 / 2.4) - 0.055;
  return static_cast<uint8_t>(std::lround(std::clamp(encoded, 0.0, 1.0) * 255));
}

// Source: Björn Ottosson, "A perceptual color space for image processing", 2020.
Lab to_lab(Rgb rgb) {
  const double r = to_linear(rgb.red), g = to_linear(rgb.green), b = to_linear(rgb.blue);
  const double l = std::cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const double m = std::cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const double s = std::cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return {0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
          1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
          0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
}

// The inverse of to_lab, from the same source.
Rgb from_lab(Lab lab) {
  const auto cube = [](double x) { return x * x * x; };
  const double l = cube(lab.l + 0.3963377774 * lab.a + 0.2158037573 * lab.b);
  const double m = cube(lab.l - 0.1055613458 * lab.a - 0.0638541728 * lab.b);
  const double s = cube(lab.l - 0.0894841775 * lab.a - 1.2914855480 * lab.b);
  return {from_linear(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          from_linear(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          from_linear(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

// Relative luminance as WCAG 2 defines it.
double luminance(Rgb rgb) {
  return 0.2126 * to_linear(rgb.red) + 0.7152 * to_linear(rgb.green) + 0.0722 * to_linear(rgb.blue);
}

}  // namespace

Rgb share_colour(double share) {
  const double position = std::clamp(share, 0.0, 1.0) * (kStops.size() - 1);
  const size_t low = std::min(static_cast<size_t>(position), kStops.size() - 2);
  const double t = position - static_cast<double>(low);
  const Lab a = to_lab(kStops[low]), b = to_lab(kStops[low + 1]);
  return from_lab({a.l + (b.l - a.l) * t, a.a + (b.a - a.a) * t, a.b + (b.b - a.b) * t});
}

Rgb text_colour_on(Rgb background) {
  // Contrast ratio of WCAG 2: (lighter + 0.05) / (darker + 0.05).
  const double light = luminance(background);
  const double with_white = 1.05 / (light + 0.05);
  const double with_black = (light + 0.05) / 0.05;
  return with_white >= with_black ? Rgb{255, 255, 255} : Rgb{0, 0, 0};
}

std::string hex(Rgb colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

std::string terminal_colours(double share) {
  const Rgb back = share_colour(share);
  const Rgb text = text_colour_on(back);
  return fmt::format("\033[48;2;{};{};{};38;2;{};{};{}m", back.red, back.green, back.blue, text.red,
                     text.green, text.blue);
}

}  // namespace sluice::eval
