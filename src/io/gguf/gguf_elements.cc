// Finds the place of rows and columns, and decodes the blocks there.
#include "io/gguf/gguf_elements.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "core/dtype.h"

namespace sluice {
namespace {

constexpr int64_t kPieceBytes = 64 * 1024;  // of a file, decoded at once

bool has_rows_in_order(const GgufStorage& storage) {
  return storage.rotated_head_rows == 0 && !storage.tiled_rows.present();
}

// Rows that follow each other in the file as they do here: where the first one is, and how many.
struct RowRun {
  int64_t row_in_file = 0;
  int64_t count = 0;
};

// The run that begins with a row. Of a rotated head the first half of rows rotates with the second
// half here; llama.cpp puts both of a pair side by side.
RowRun run_at(const GgufStorage& storage, int64_t row) {
  constexpr int64_t kAll = int64_t{1} << 40;
  if (has_rows_in_order(storage)) return {row, kAll};
  if (const int64_t head_rows = storage.rotated_head_rows; head_rows != 0) {
    const int64_t in_head = row % head_rows, half = head_rows / 2;
    return {row - in_head + in_head % half * 2 + in_head / half, 1};
  }
  const TiledHeads& heads = storage.tiled_rows;
  if (row < heads.begin) return {row, heads.begin - row};
  return {heads.in_file(row), heads.unit - (row - heads.begin) % heads.unit};
}

// Elements [first, first + dst.size()) of consecutive blocks that begin at byte `begin`. The range
// may begin and end within blocks, which are then decoded whole: a block has one scale for all of
// its elements, and some formats spread an element over several bytes.
void read_run(const ModelFile& file, uint64_t begin, const GgufType& type, int64_t first,
              std::span<float> dst) {
  const int64_t per_block = type.block_elements;
  const auto block_bytes = static_cast<int64_t>(type.block_bytes);
  const int64_t at_once = kPieceBytes / block_bytes;
  std::vector<std::byte> bytes;
  std::vector<float> elements;
  int64_t done = 0;
  while (done < std::ssize(dst)) {
    const int64_t block = (first + done) / per_block, skipped = (first + done) % per_block;
    const int64_t left = skipped + std::ssize(dst) - done;
    const int64_t num_blocks = std::min(at_once, (left + per_block - 1) / per_block);
    bytes.resize(static_cast<size_t>(num_blocks * block_bytes));
    elements.resize(static_cast<size_t>(num_blocks * per_block));
    file.read(begin + static_cast<uint64_t>(block * block_bytes), bytes);
    type.decode(bytes.data(), num_blocks, elements.data());
    const int64_t count = std::min(num_blocks * per_block, left) - skipped;
    std::copy_n(elements.begin() + skipped, count, dst.begin() + done);
    done += count;
  }
}

uint64_t row_bytes(const GgufStorage& storage) {
  return static_cast<uint64_t>(storage.row_elements / storage.type->block_elements) *
         storage.type->block_bytes;
}

// Rows in another order, each run of them from its place in the file.
void read_rows(const ModelFile& file, uint64_t begin, const GgufStorage& storage, int64_t first,
               std::span<float> dst) {
  for (size_t done = 0; done < dst.size();) {
    const int64_t at = first + static_cast<int64_t>(done);
    const int64_t col = at % storage.row_elements;
    const RowRun run = run_at(storage, at / storage.row_elements);
    const int64_t in_run = run.count * storage.row_elements - col;
    const size_t count = std::min(static_cast<size_t>(in_run), dst.size() - done);
    read_run(file, begin + static_cast<uint64_t>(run.row_in_file) * row_bytes(storage),
             *storage.type, col, dst.subspan(done, count));
    done += count;
  }
}

// Columns in another order. Blocks may have columns of several heads, so a row is decoded whole.
void read_columns(const ModelFile& file, uint64_t begin, const GgufStorage& storage, int64_t first,
                  std::span<float> dst) {
  std::vector<float> row(static_cast<size_t>(storage.row_elements));
  for (size_t done = 0; done < dst.size();) {
    const int64_t at = first + static_cast<int64_t>(done);
    const int64_t col = at % storage.row_elements;
    const size_t count =
        std::min(static_cast<size_t>(storage.row_elements - col), dst.size() - done);
    read_run(file, begin, *storage.type, at - col, row);
    for (size_t i = 0; i < count; ++i) {
      const int64_t from = storage.tiled_columns.in_file(col + static_cast<int64_t>(i));
      dst[done + i] = row[static_cast<size_t>(from)];
    }
    done += count;
  }
}

// A_log of a stored -exp(A_log). Models have it in bf16, or in F32. The logarithm gives the latter
// up to the rounding of the exponential, and the former exactly: a number of bf16 that gives what
// is stored, but for last bits in which exponentials of F32 differ (numpy's by 3 units), is taken
// for the one that it was made from. If it is not, the decay is off by no more than these bits.
float log_of_decay(float decay) {
  constexpr double kMostApart = 4.0 / (1 << 23);
  const double exact = std::log(-static_cast<double>(decay));
  const auto rounded = static_cast<float>(BFloat16(static_cast<float>(exact)));
  const double apart = std::fabs(std::exp(static_cast<double>(rounded) - exact) - 1.0);
  return apart <= kMostApart ? rounded : static_cast<float>(exact);
}

}  // namespace

int64_t TiledHeads::in_file(int64_t index) const {
  if (!present() || index < begin) return index;
  const int64_t head = (index - begin) / unit, in_head = (index - begin) % unit;
  return begin + (head % per_group * num_groups + head / per_group) * unit + in_head;
}

// The usual case comes first: rows follow each other without gaps, so in the order of the file they
// are one run.
void read_gguf_elements(const ModelFile& file, uint64_t begin, const GgufStorage& storage,
                        int64_t first, std::span<float> dst) {
  if (has_rows_in_order(storage) && !storage.tiled_columns.present()) {
    read_run(file, begin, *storage.type, first, dst);
  } else if (storage.tiled_columns.present()) {
    read_columns(file, begin, storage, first, dst);
  } else {
    read_rows(file, begin, storage, first, dst);
  }
  // F32 has 1 + w of a number of bf16 exactly, but for a w below 2^-16, which then loses bits that
  // the sum never had. So the sum is again what is stored.
  if (storage.values == GgufConversion::kPlusOne) {
    for (float& value : dst) value -= 1.0f;
  } else if (storage.values == GgufConversion::kDecay) {
    std::ranges::transform(dst, dst.begin(), log_of_decay);
  }
}

// Runs of rows that follow each other in the file, as read_rows.
void read_gguf_blocks(const ModelFile& file, uint64_t begin, const GgufStorage& storage,
                      int64_t first, std::span<std::byte> dst) {
  const GgufType& type = *storage.type;
  for (size_t done = 0; done < dst.size();) {
    const int64_t at = first + static_cast<int64_t>(done / type.block_bytes) * type.block_elements;
    const int64_t col = at % storage.row_elements;
    const RowRun run = run_at(storage, at / storage.row_elements);
    const auto blocks_before = static_cast<uint64_t>(col / type.block_elements);
    const size_t in_run =
        static_cast<size_t>(run.count) * row_bytes(storage) - blocks_before * type.block_bytes;
    const size_t count = std::min(in_run, dst.size() - done);
    file.read(begin + static_cast<uint64_t>(run.row_in_file) * row_bytes(storage) +
                  blocks_before * type.block_bytes,
              dst.subspan(done, count));
    done += count;
  }
}

}  // namespace sluice
