// One prefill of CUDA attention: its shape, its page lists or tile mask, its calls, its work in
// FLOP and its error against double precision.
//
// Used by cuda_attention_bench, which measures it. Thread rule: main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cuda_workbench.h"
#include "ops/attention/attention.h"

namespace sluice::bench {

// The pages that the rows of a query page list: the first and newest tokens, and others at random.
struct Lists {
  int32_t page_tokens = 0;  // 0: no lists
  int32_t q_page_tokens = 0;
  int32_t sink_tokens = 0;
  int32_t recent_tokens = 0;
  double density = 0;    // share of random pages, for each KV head; 0: one list for all heads
  bool as_mask = false;  // the lists, of pages and query pages of 128, become a tile mask
  int32_t columns = 0;   // beside the mask, at random, of each KV head and segment that has as many
                         // tokens before it; a multiple of 128
};

// Rows that share columns.
inline constexpr int32_t kSegmentTokens = 512;

struct PrefillShape {
  const char* name;
  int32_t num_rows;
  int32_t num_tokens;  // the rows are the last of them
  int32_t num_q_heads = 16;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
  int32_t block_tokens = 256;
  int32_t piece_tokens = 0;  // not 0: the walk is cut into calls of this many tokens
  Lists lists = {};
  // Not 0: the prompt is attended as in the engine, in chunks of this many rows; each chunk attends
  // its history and itself.
  int32_t chunk_rows = 0;

  // FLOP of a row and a token it sees: for each head 2 products over head_dim channels.
  double flop_per_pair() const { return 4.0 * num_q_heads * head_dim; }
  // A causal row at position p sees p + 1 tokens.
  double flop() const {
    const double first = num_tokens - num_rows + 1;
    return (first + num_tokens) / 2 * num_rows * flop_per_pair();
  }
  // FLOP of all tiles of 128 packed rows by 128 tokens that the rows of a whole prompt visit
  // without lists.
  double tile_flop() const {
    const int32_t rows = 128 * num_kv_heads / num_q_heads;
    double num_tiles = 0;
    for (int32_t begin = 0; begin < num_rows; begin += rows) {
      num_tiles += (begin + rows - 1) / 128 + 1;
    }
    return num_tiles * rows * 128 * flop_per_pair();
  }
};

// The page lists of a shape; its rows must be the whole prompt.
class ListTable {
 public:
  explicit ListTable(const PrefillShape& shape);

  int32_t num_heads() const { return num_heads_; }
  int32_t num_q_pages() const { return shape_.num_tokens / shape_.lists.q_page_tokens; }
  const std::vector<int32_t>& list(int32_t head, int32_t q_page) const {
    return lists_[static_cast<size_t>(head * num_q_pages() + q_page)];
  }
  // The lists of query pages [first, first + count) of every head.
  // ids: [num_heads][count][width], counts: [num_heads][count].
  struct Entries {
    std::vector<int32_t> ids, counts;
    int64_t width = 1;  // the longest list of the table
  };
  Entries entries(int32_t first, int32_t count) const;

  // FLOP of all pairs of a row and a token that the row lists and may see.
  double flop() const;
  // FLOP of all tiles of 128 packed rows by 128 tokens that contain a page of some row's list, or
  // by 128 columns.
  double tile_flop() const;

 private:
  std::vector<int32_t> make_list(int32_t head, int32_t q_page) const;

  PrefillShape shape_;
  int32_t num_heads_;
  std::vector<std::vector<int32_t>> lists_;
  int64_t width_ = 1;
};

// One sequence of random bf16 in device memory, and copies of a few rows that the host can read.
class PrefillWalk {
 public:
  PrefillWalk(Workbench& bench, const PrefillShape& shape);

  // FLOP of the pairs that the rows attend, without columns.
  double flop() const { return lists_ ? lists_->flop() : shape_.flop(); }
  // FLOP of the tiles that the kernel for Hopper computes; 0: not known.
  double tile_flop() const { return lists_ ? lists_->tile_flop() : 0; }

  // All calls of one walk.
  void enqueue();

  // Relative error (norm of the difference over the norm) of the first, a middle and the last row.
  double error();

 private:
  void make_state();
  void make_lists();
  void make_calls();
  void make_chunk_calls(int32_t first_row, int32_t num_rows);
  void make_mask();
  void make_columns();
  std::vector<int32_t> mask_words(int32_t first_q_tile, int32_t count) const;
  PageList lists_of_row(int32_t row);
  TileMask mask_of_row(int32_t row);
  TileColumns columns_on_host();
  void add_row_error(int32_t row, double& difference, double& norm);

  Workbench& bench_;
  PrefillShape shape_;
  AttentionArgs args_;  // the whole walk as one call
  std::vector<AttentionArgs> calls_;
  TensorView host_kv_, host_table_;
  std::optional<ListTable> lists_;
};

}  // namespace sluice::bench
