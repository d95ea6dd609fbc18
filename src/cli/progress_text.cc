// Lays out the progress line and estimates rates.
#include "cli/progress_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <vector>

#include <fmt/format.h>

namespace sluice::cli {
namespace {

// A shorter bar would show too few steps; a longer one takes room from the text.
constexpr int kMaxBarCells = 24;
constexpr int kMinBarCells = 6;

// Bytes of the UTF-8 character at the start of `text`; 1 if the bytes are no valid character.
size_t character_size(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (size > text.size()) return 1;
  for (size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 1;
  }
  return size;
}

// An upper bound of the cells of a character, by its bytes. Characters of one or two bytes (up to
// U+07FF) are never wide; longer ones may be, and one cell too many is harmless.
int character_cells(size_t size) { return size >= 3 ? 2 : 1; }

// `text` with control characters and invalid UTF-8 replaced by "?", so that it stays on one line.
std::string plain(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t size = character_size(text);
    const auto lead = static_cast<unsigned char>(text[0]);
    const bool is_plain = size > 1 || (lead >= 0x20 && lead < 0x7F);
    result += is_plain ? text.substr(0, size) : "?";
    text.remove_prefix(size);
  }
  return result;
}

// The longest prefix of `text` that takes at most `cells`.
std::string cut_to_cells(std::string_view text, int cells) {
  size_t end = 0;
  while (end < text.size()) {
    const size_t size = character_size(text.substr(end));
    cells -= character_cells(size);
    if (cells < 0) break;
    end += size;
  }
  return std::string(text.substr(0, end));
}

// A bar of `cells` cells, filled to the nearest cell.
std::string bar(double share, int cells, bool is_utf8) {
  const int full = static_cast<int>(share * cells + 0.5);
  std::string text;
  for (int i = 0; i < cells; ++i) text += i < full ? (is_utf8 ? "━" : "#") : (is_utf8 ? "┄" : ".");
  return text;
}

// One part of the line after share and task; parts are printed in the order of parts_of.
struct Part {
  std::string text;
  int worth;  // parts with the lowest value are left out first
};

// The parts that the state has values for.
std::vector<Part> parts_of(const ProgressState& state) {
  std::vector<Part> parts;
  if (!state.detail.empty()) parts.push_back({": " + plain(state.detail), 2});
  if (state.tokens_per_second > 0) {
    const int digits = state.tokens_per_second < 10 ? 1 : 0;
    parts.push_back({fmt::format(", {:.{}f} tok/s", state.tokens_per_second, digits), 3});
  }
  parts.push_back({", " + format_duration(state.seconds), 1});
  if (state.seconds_left) {
    parts.push_back({fmt::format(", {} left", format_duration(*state.seconds_left)), 4});
  }
  return parts;
}

}  // namespace

int text_cells(std::string_view text) {
  int cells = 0;
  while (!text.empty()) {
    const size_t size = character_size(text);
    cells += character_cells(size);
    text.remove_prefix(size);
  }
  return cells;
}

std::string format_duration(double seconds) {
  // The clamp keeps estimates that are negative or infinite printable.
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string progress_text(int columns, const ProgressState& state, const ProgressStyle& style) {
  // A text in the last column would make some terminals wrap.
  const int room = std::max(0, columns - 1);
  const double share = std::clamp(state.share.value_or(0), 0.0, 1.0);
  // Rounded down, so that 100 % means done.
  std::string head = state.share ? fmt::format("{:3.0f} % ", std::floor(share * 100)) : "";
  head = cut_to_cells(head + plain(state.task), room);
  int left = room - text_cells(head);

  std::vector<Part> parts = parts_of(state);
  std::vector<const Part*> by_worth;
  for (const Part& part : parts) by_worth.push_back(&part);
  std::sort(by_worth.begin(), by_worth.end(),
            [](const Part* a, const Part* b) { return a->worth > b->worth; });
  std::vector<const Part*> kept;
  // A part that does not fit is skipped; a shorter one of lower worth may still fit.
  for (const Part* part : by_worth) {
    const int cells = text_cells(part->text);
    if (cells > left) continue;
    left -= cells;
    kept.push_back(part);
  }
  std::string text = head;
  for (const Part& part : parts) {
    if (std::find(kept.begin(), kept.end(), &part) != kept.end()) text += part.text;
  }
  const int bar_cells = std::min(kMaxBarCells, left - 1);  // one cell for the space after it
  if (!style.has_bar || !state.share || bar_cells < kMinBarCells) return text;
  return bar(share, bar_cells, style.is_utf8) + " " + text;
}

bool is_utf8_locale(const char* lc_all, const char* lc_ctype, const char* lang) {
  // POSIX: LC_ALL wins over LC_CTYPE, which wins over LANG.
  for (const char* value : {lc_all, lc_ctype, lang}) {
    if (value == nullptr || *value == '\0') continue;
    std::string name(value);
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return name.find("utf-8") != std::string::npos || name.find("utf8") != std::string::npos;
  }
  return false;
}

void Pace::see(double amount, double seconds) {
  // Ten samples a second bound the memory of the window.
  if (!seen_.empty() && seconds - seen_.back().first < 0.1) return;
  if (!seen_.empty() && amount < seen_.back().second) seen_.clear();  // a new task has begun
  seen_.emplace_back(seconds, amount);
  while (seen_.size() > 2 && seconds - seen_.front().first > kWindowSeconds) seen_.pop_front();
}

double Pace::per_second() const {
  if (seen_.size() < 2) return 0;
  const double seconds = seen_.back().first - seen_.front().first;
  // Less than half a second of samples gives no stable rate.
  return seconds < 0.5 ? 0 : (seen_.back().second - seen_.front().second) / seconds;
}

}  // namespace sluice::cli
