// Rows are cut into pieces of kPieceLogits. Threads reduce pieces; then one thread combines the
// pieces of each row in ascending order, so that sums do not depend on the number of threads.
#include "ops/cpu/sample/stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/rows/kernels.h"

namespace sluice::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kBlock = 1024;              // logits of one f32 sum; sums of blocks are double
constexpr int32_t kPieceLogits = 8 * kBlock;  // of a task: about 10 us

// Of the stream's worker, kept for its next call.
struct Scratch {
  std::vector<RowStats> rows;
  std::vector<int32_t> top_ids;    // [rows][pieces]
  std::vector<double> block_sums;  // [rows][blocks]
};

// The best of a row's pieces; an earlier piece wins among equals.
void join_argmax(const float* logits, int32_t vocab, const int32_t* top_ids, int32_t num_pieces,
                 RowStats& stats) {
  stats = {.top_id = vocab, .largest = kInfinity};
  for (int32_t piece = 0; piece < num_pieces; ++piece) {
    const int32_t id = top_ids[piece];
    if (id == vocab) continue;
    if (stats.top_id == vocab || logits[id] > stats.largest) {
      stats.top_id = id;
      stats.largest = logits[id];
    }
  }
}

}  // namespace

int32_t argmax(const float* logits, int32_t count) {
  float lanes[16];
  std::fill(lanes, lanes + 16, -kInfinity);
  int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int l = 0; l < 16; ++l) lanes[l] = lanes[l] < logits[i + l] ? logits[i + l] : lanes[l];
  }
  for (; i < count; ++i) lanes[i % 16] = std::max(lanes[i % 16], logits[i]);
  const float largest = *std::max_element(lanes, lanes + 16);
  return static_cast<int32_t>(std::find(logits, logits + count, largest) - logits);
}

const std::vector<RowStats>& row_stats(ThreadTeam& team, const float* logits, int64_t num_rows,
                                       int32_t vocab, const RowKernels& kernels) {
  thread_local Scratch scratch;
  const int32_t num_pieces = (vocab + kPieceLogits - 1) / kPieceLogits;
  const int32_t num_blocks = (vocab + kBlock - 1) / kBlock;
  scratch.rows.resize(static_cast<size_t>(num_rows));
  scratch.top_ids.resize(static_cast<size_t>(num_rows * num_pieces));
  scratch.block_sums.resize(static_cast<size_t>(num_rows * num_blocks));
  // Through plain pointers: in another thread the name `scratch` is that thread's own.
  RowStats* const rows = scratch.rows.data();
  int32_t* const top_ids = scratch.top_ids.data();
  double* const block_sums = scratch.block_sums.data();

  team.parallel_for(num_rows * num_pieces, [&](int64_t task) {
    const auto begin = static_cast<int32_t>(task % num_pieces) * kPieceLogits;
    const int32_t count = std::min(kPieceLogits, vocab - begin);
    const int32_t id = argmax(logits + task / num_pieces * vocab + begin, count);
    top_ids[task] = id == count ? vocab : begin + id;
  });
  for (int64_t row = 0; row < num_rows; ++row) {
    join_argmax(logits + row * vocab, vocab, top_ids + row * num_pieces, num_pieces, rows[row]);
  }
  team.parallel_for(num_rows * num_pieces, [&](int64_t task) {
    const int64_t row = task / num_pieces;
    const auto first = static_cast<int32_t>(task % num_pieces) * (kPieceLogits / kBlock);
    const int32_t end = std::min(num_blocks, first + kPieceLogits / kBlock);
    for (int32_t block = first; block < end; ++block) {
      const int32_t begin = block * kBlock;
      block_sums[row * num_blocks + block] = static_cast<double>(kernels.sum_exp(
          logits + row * vocab + begin, std::min(kBlock, vocab - begin), rows[row].largest));
    }
  });
  for (int64_t row = 0; row < num_rows; ++row) {
    double total = 0.0;
    for (int32_t block = 0; block < num_blocks; ++block) {
      total += block_sums[row * num_blocks + block];
    }
    rows[row].log_sum = std::log(total);
  }
  return scratch.rows;
}

}  // namespace sluice::cpu
