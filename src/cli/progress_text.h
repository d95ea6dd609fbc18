// The text of a progress line: what fits a terminal of some width, most useful parts first.
//
// Used by ProgressLine (cli/terminal.h), which knows the terminal. Thread rule: pure functions and
// a value.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::cli {

struct ProgressState {
  std::string task;                    // "reading"
  std::string detail;                  // "3072 of 11289 prompt tokens"; may be empty
  std::optional<double> share;         // 0 to 1; nothing: only the time is known
  double seconds = 0;                  // since the task began
  double tokens_per_second = 0;        // 0: not known
  std::optional<double> seconds_left;  // nothing: not known
};

struct ProgressStyle {
  bool has_bar = true;
  bool is_utf8 = true;  // of the locale: otherwise the line is ASCII, but for names in it
};

// "━━━━━━┄┄┄┄┄┄┄┄  27 % reading: 3072 of 11289 prompt tokens, 812 tok/s, 4 s, 10 s left" in at most
// `columns` - 1 cells, so that no terminal wraps it. Parts are left out in this order: elapsed
// time, detail, rate, time left; the bar takes what is left, the task is cut last.
std::string progress_text(int columns, const ProgressState& state, const ProgressStyle& style);

// Cells that a UTF-8 text takes at most: two for what may be wide. Control characters count one;
// progress_text prints "?" for them.
int text_cells(std::string_view text);

// "8 s", "3 min 05 s", "2 h 05 min".
std::string format_duration(double seconds);

// Whether these values of LC_ALL, LC_CTYPE and LANG (null: not set) name a UTF-8 locale. The first
// that is not empty decides.
bool is_utf8_locale(const char* lc_all, const char* lc_ctype, const char* lang);

// How fast something grows, over the last ten seconds or so.
class Pace {
 public:
  // `amount` is done `seconds` after the start; neither falls.
  void see(double amount, double seconds);
  // 0 until it has seen growth over half a second.
  double per_second() const;

 private:
  static constexpr double kWindowSeconds = 10;
  std::deque<std::pair<double, double>> seen_;  // seconds and amount, a tenth of a second apart
};

}  // namespace sluice::cli
