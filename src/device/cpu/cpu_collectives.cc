// Pieces of messages through the slots of a group.
#include "device/cpu/cpu_collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/dtype.h"
#include "device/cpu/cpu_stream.h"

namespace sluice {
namespace {

// Elements of one task, and of the sums that it keeps in registers and the first cache.
constexpr int64_t kTaskElements = 1 << 15;
constexpr int64_t kBlockElements = 256;

float as_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// out = the sum of as many parts, [begin, end).
void add_parts(const RankGroup& group, uint32_t number, uint16_t* out, int64_t begin, int64_t end) {
  float sums[kBlockElements];
  for (int64_t at = begin; at < end; at += kBlockElements) {
    const int64_t count = std::min(kBlockElements, end - at);
    for (int32_t rank = 0; rank < group.options().num_ranks; ++rank) {
      const auto* part = reinterpret_cast<const uint16_t*>(group.slot(rank, number).data()) + at;
      for (int64_t i = 0; i < count; ++i)
        sums[i] = (rank == 0 ? 0.0f : sums[i]) + as_float(part[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[at + i] = BFloat16(sums[i]).bits;
  }
}

}  // namespace

void CpuCollectives::sum(Stream& stream, const TensorView& x) {
  SLUICE_CHECK(x.dtype() == DType::kBF16, "a sum of {}", dtype_name(x.dtype()));
  as_cpu(stream).submit("sum_over_ranks", [this, data = reinterpret_cast<uint16_t*>(x.bytes()),
                                           count = x.num_elements()](ThreadTeam& team) {
    const auto most = static_cast<int64_t>(group_.options().slot_bytes / sizeof(uint16_t));
    for (int64_t at = 0; at < count; at += most) {
      sum_piece(team, data + at, std::min(most, count - at));
    }
  });
}

// The copy is made by one thread: a piece is at most a slot, which the cache holds.
void CpuCollectives::sum_piece(ThreadTeam& team, uint16_t* x, int64_t count) {
  const uint32_t number = ++number_;
  std::memcpy(group_.slot(rank_, number).data(), x, static_cast<size_t>(count) * sizeof(uint16_t));
  meet(number);
  team.parallel_for((count + kTaskElements - 1) / kTaskElements, [&](int64_t task) {
    const int64_t begin = task * kTaskElements;
    add_parts(group_, number, x, begin, std::min(begin + kTaskElements, count));
  });
}

void CpuCollectives::meet(uint32_t number) {
  group_.publish(rank_, number);
  group_.await_all(rank_, number);
}

// Of a gather: pieces of `most` columns at most.
struct CpuCollectives::Columns {
  const float* part;
  float* all;
  int64_t num_columns;  // of `all`
  int64_t width;
  int64_t most;

  // Columns of a rank's piece that begins at its column `column`.
  int64_t count(int32_t rank, int64_t column) const {
    const int64_t own = std::clamp<int64_t>(num_columns - rank * width, 0, width);
    return std::clamp<int64_t>(own - column, 0, most);
  }
};

void CpuCollectives::gather(Stream& stream, const GatherArgs& args) {
  const auto most = static_cast<int64_t>(group_.options().slot_bytes / sizeof(float));
  const Columns columns{.part = args.part.data<float>(),
                        .all = args.all.data<float>(),
                        .num_columns = args.all.dim(1),
                        .width = args.width,
                        .most = std::min(most, args.width)};
  as_cpu(stream).submit(
      "gather_over_ranks", [this, columns, num_rows = args.all.dim(0), most](ThreadTeam&) {
        const int64_t rows_at_once = most / columns.most;
        for (int64_t row = 0; row < num_rows; row += rows_at_once) {
          for (int64_t column = 0; column < columns.width; column += columns.most) {
            gather_piece(columns, row, std::min(rows_at_once, num_rows - row), column);
          }
        }
      });
}

void CpuCollectives::gather_piece(const Columns& columns, int64_t row, int64_t num_rows,
                                  int64_t column) {
  const uint32_t number = ++number_;
  const auto slot_of = [&](int32_t rank) {
    return reinterpret_cast<float*>(group_.slot(rank, number).data());
  };
  const int64_t own =
      std::clamp<int64_t>(columns.num_columns - rank_ * columns.width, 0, columns.width);
  for (int64_t i = 0; i < num_rows; ++i) {
    std::copy_n(columns.part + (row + i) * own + column, columns.count(rank_, column),
                slot_of(rank_) + i * columns.most);
  }
  meet(number);
  if (rank_ != 0) return;
  for (int32_t rank = 0; rank < group_.options().num_ranks; ++rank) {
    for (int64_t i = 0; i < num_rows; ++i) {
      std::copy_n(slot_of(rank) + i * columns.most, columns.count(rank, column),
                  columns.all + (row + i) * columns.num_columns + rank * columns.width + column);
    }
  }
}

}  // namespace sluice
