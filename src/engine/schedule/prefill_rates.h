// PrefillRates: what a row of a prefill pass costs, by its position, as measured.
//
// Used by PassRoom to size spans by time. Attention makes late rows slow, by how much depends on
// the model, the device and the policy, so nothing is assumed but this: the cost of a row does not
// fall with its position, and grows at most in proportion to it. Thread rule: the engine's thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

namespace sluice {

class PrefillRates {
 public:
  // A pass of `num_rows` rows, at `mean_position` on average, took `duration_ns`. It counts as much
  // as all earlier ones near this position, and less if it was shorter, since a row of a short pass
  // costs more.
  void measured(int64_t mean_position, int64_t num_rows, int64_t duration_ns);

  // An upper bound of the cost of a row at `position`, from the nearest measurements on both sides;
  // empty before the first one.
  std::optional<double> ns_per_row(int64_t position) const;

  // The most rows from `first_pos` on, up to `max_rows`, that take at most `duration_ns`; 0 if
  // nothing is measured.
  int64_t rows_within(int64_t first_pos, int64_t duration_ns, int64_t max_rows) const;

 private:
  struct Point {
    double position = 0;
    double ns_per_row = 0;  // 0: nothing was measured
    double num_rows = 0;    // of the passes that were measured, roughly
  };

  // A point for each quarter of a doubling of the position.
  static constexpr int kPerDoubling = 4;
  static constexpr int kNumPoints = 32 * kPerDoubling;
  static int index_of(int64_t position);

  std::array<Point, kNumPoints> points_;
};

}  // namespace sluice
