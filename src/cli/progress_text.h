// The text of a progress line: as much as fits the terminal's width, most useful parts first.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::cli {

// What a progress line can show.
struct ProgressState {
  std::string task;                    // "reading"
  std::string detail;                  // "3072 of 11289 prompt tokens"; may be empty
  std::optional<double> share;         // done, 0 to 1; empty: unknown
  double seconds = 0;                  // since the task began
  double tokens_per_second = 0;        // 0: unknown
  std::optional<double> seconds_left;  // empty: unknown
};

struct ProgressStyle {
  bool has_bar = true;
  bool is_utf8 = true;  // draw the bar with UTF-8; false: the line is ASCII except for names
};

// "━━━━━━┄┄┄┄┄┄┄┄  27 % reading: 3072 of 11289 prompt tokens, 812 tok/s, 4 s, 10 s left"
// At most `columns` - 1 cells, so that no terminal wraps it. If room is short, parts are left out
// in this order: elapsed time, detail, rate, time left. The bar takes the remaining room; the task
// is cut last.
std::string progress_text(int columns, const ProgressState& state, const ProgressStyle& style);

// An upper bound of the terminal cells of a UTF-8 text: two for each character that may be wide. A
// control character counts as one; progress_text replaces it by "?".
int text_cells(std::string_view text);

// "8 s", "3 min 05 s", "2 h 05 min".
std::string format_duration(double seconds);

// True if these values of LC_ALL, LC_CTYPE and LANG (null: not set) select a UTF-8 locale. The
// first that is set and not empty decides.
bool is_utf8_locale(const char* lc_all, const char* lc_ctype, const char* lang);

// The rate at which an amount grows, over the last ten seconds.
class Pace {
 public:
  // Adds a sample: `amount` was done `seconds` after the start. Seconds never fall; a smaller
  // amount starts a new measurement.
  void see(double amount, double seconds);
  // 0 until the samples span half a second.
  double per_second() const;

 private:
  static constexpr double kWindowSeconds = 10;
  std::deque<std::pair<double, double>> seen_;  // (seconds, amount), at least 0.1 s apart
};

}  // namespace sluice::cli
