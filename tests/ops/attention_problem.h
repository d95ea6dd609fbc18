// A batch of sequences with random queries, keys and values, in the block layout that a test
// chooses.
//
// Used by the attention tests and nowhere else. The numbers depend on the shape and the seed, never
// on the layout, so that two layouts of one problem must give the same bits.
// Thread rule: host thread.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "attention_columns.h"
#include "copied_pages.h"
#include "op_test_util.h"
#include "ops/attention/attention.h"
#include "ops/cpu/cpu_ops.h"

namespace sluice::testing {

struct SequenceShape {
  int32_t num_rows = 1;
  int32_t first_pos = 0;
  int32_t num_kv_tokens() const { return first_pos + num_rows; }
};

struct AttentionShape {
  int32_t head_dim = 64;
  int32_t num_kv_heads = 2;
  int32_t group = 2;
  std::vector<SequenceShape> seqs = {{.num_rows = 37, .first_pos = 0}};
  uint32_t seed = 1;

  int32_t num_q_heads() const { return num_kv_heads * group; }
  int32_t num_rows() const {
    int32_t rows = 0;
    for (const SequenceShape& seq : seqs) rows += seq.num_rows;
    return rows;
  }
};

// How a problem is run. No field may change a bit of the result, except lists and limits, which
// change the problem.
struct AttentionRun {
  CpuIsa isa = CpuIsa::kAvx2;
  int num_threads = 2;
  int32_t block_tokens = 16;
  std::vector<int32_t> splits;  // positions, multiples of block_tokens, where the walk is cut
  // Pages to attend, the same for all lists; absent means all.
  std::optional<std::vector<int32_t>> pages;
  // A list for each sequence, KV head and query page (position / q_page_tokens). Overrides `pages`.
  std::function<std::vector<int32_t>(int32_t seq, int32_t head, int32_t q_page)> list_of;
  bool one_list_for_all_heads = false;
  int32_t page_tokens = 16;
  int32_t q_page_tokens = 0;
  // The lists become a tile mask. Pages and query pages have kMaskTileTokens.
  bool as_mask = false;
  // Columns beside the mask, of each KV head (or head 0 for all) and segment. One sequence only.
  std::function<std::vector<int32_t>(int32_t head, int32_t segment)> columns_of;
  int32_t segment_tokens = 4 * kMaskTileTokens;
  // Not 0: pages are gathered up to the first split, this many entries of each list per call. One
  // sequence only.
  int32_t gathered_entries = 0;
  // Up to the first split pages are gathered into places all over the memory, of any number of
  // sequences.
  bool in_places = false;
  // One past the last token that may be seen, for every sequence; absent means all.
  std::optional<int32_t> kv_limit;
  // Not null: makes the KV of each call from that of the problem.
  KvBlocksView (*convert)(Machine& machine, const KvBlocksView& kv) = nullptr;
};

// The list of pages 0 to count - 1.
inline std::vector<int32_t> first_pages(int32_t count) {
  std::vector<int32_t> pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

// About half of the first `count` pages, ascending; the same ones for the same seed.
inline std::vector<int32_t> half_of_pages(int32_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> pages;
  for (int32_t page = 0; page < count; ++page) {
    if (generator() % 2 == 0) pages.push_back(page);
  }
  return pages;
}

struct AttentionResult {
  std::vector<std::byte> out;
  std::vector<std::byte> acc, max, sum;  // the state that would have become out
};

// Enqueues one call: the kernels of `isa` on the CPU, the op on other devices.
inline void attend(Machine& machine, const AttentionArgs& args, CpuIsa isa) {
  if (machine.on_cpu()) {
    cpu::CpuOps(isa).attention(machine.stream(), args);
  } else {
    attention(machine.stream(), args);
  }
}

class AttentionProblem {
 public:
  explicit AttentionProblem(const AttentionShape& shape)
      : shape_(shape),
        q_(random_bf16(
            static_cast<int64_t>(shape.num_rows()) * shape.num_q_heads() * shape.head_dim,
            shape.seed, 1.5f)) {
    uint32_t seed = shape.seed + 100;
    for (const SequenceShape& seq : shape.seqs) {
      const int64_t count =
          static_cast<int64_t>(seq.num_kv_tokens()) * shape.num_kv_heads * shape.head_dim;
      k_.push_back(random_bf16(count, seed++));
      v_.push_back(random_bf16(count, seed++));
    }
  }

  const AttentionShape& shape() const { return shape_; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }

  // The same problem with one sequence's rows alone: [first_row, first_row + num_rows).
  AttentionProblem rows_of(int32_t seq, int32_t first_row, int32_t num_rows) const {
    AttentionProblem part;
    part.shape_ = shape_;
    const SequenceShape& whole = shape_.seqs[static_cast<size_t>(seq)];
    part.shape_.seqs = {{.num_rows = num_rows, .first_pos = whole.first_pos + first_row}};
    const int64_t row_elements = shape_.num_q_heads() * shape_.head_dim;
    const auto begin = q_.begin() + (row_begin(seq) + first_row) * row_elements;
    part.q_.assign(begin, begin + num_rows * row_elements);
    part.k_ = {k_[static_cast<size_t>(seq)]};
    part.v_ = {v_[static_cast<size_t>(seq)]};
    return part;
  }

  int32_t row_begin(int32_t seq) const {
    int32_t rows = 0;
    for (int32_t s = 0; s < seq; ++s) rows += shape_.seqs[static_cast<size_t>(s)].num_rows;
    return rows;
  }

  // Replaces every value by its absolute value: attention over these bounds rounding errors.
  AttentionProblem with_absolute_values() const {
    AttentionProblem copy = *this;
    for (auto& values : copy.v_) {
      for (BFloat16& value : values) value.bits &= 0x7fff;
    }
    return copy;
  }

  // Replaces the keys and the values of the chosen tokens by NaN.
  AttentionProblem with_nan(const std::function<bool(int32_t)>& is_key_nan,
                            const std::function<bool(int32_t)>& is_value_nan) const {
    AttentionProblem copy = *this;
    const int64_t width = static_cast<int64_t>(shape_.num_kv_heads) * shape_.head_dim;
    for (size_t seq = 0; seq < k_.size(); ++seq) {
      for (int32_t token = 0; token < shape_.seqs[seq].num_kv_tokens(); ++token) {
        const BFloat16 nan(std::numeric_limits<float>::quiet_NaN());
        if (is_key_nan(token)) std::fill_n(copy.k_[seq].begin() + token * width, width, nan);
        if (is_value_nan(token)) std::fill_n(copy.v_[seq].begin() + token * width, width, nan);
      }
    }
    return copy;
  }

  // One call over tokens [begin, end) of every sequence (cut to its length). Everything else in the
  // blocks is NaN: unused blocks, and every token from kv_end on.
  AttentionArgs call(Machine& machine, const AttentionRun& run, int32_t begin, int32_t end) const {
    AttentionArgs args;
    args.scale = scale();
    args.q = machine.tensor(q_, {shape_.num_rows(), shape_.num_q_heads(), shape_.head_dim});
    const auto num_seqs = static_cast<int64_t>(shape_.seqs.size());
    std::vector<int32_t> rows = {0}, first_pos, kv_begin, kv_end;
    for (const SequenceShape& seq : shape_.seqs) {
      rows.push_back(rows.back() + seq.num_rows);
      first_pos.push_back(seq.first_pos);
      const int32_t limit = std::min({end, seq.num_kv_tokens(), run.kv_limit.value_or(end)});
      kv_begin.push_back(begin);
      kv_end.push_back(std::max(begin, limit));
      args.batch.max_rows = std::max(args.batch.max_rows, seq.num_rows);
      args.batch.max_kv_tokens = std::max(args.batch.max_kv_tokens, seq.num_kv_tokens());
    }
    args.batch.row_begin = machine.tensor(rows, {num_seqs + 1});
    args.batch.first_pos = machine.tensor(first_pos, {num_seqs});
    args.kv_begin = machine.tensor(kv_begin, {num_seqs});
    args.kv_end = machine.tensor(kv_end, {num_seqs});
    fill_blocks(machine, run, kv_begin, kv_end, args);
    if (run.pages || run.list_of) fill_pages(machine, run, args);
    if (run.columns_of) fill_columns(machine, run, args);
    return args;
  }

  // The calls that make up a run, without state and output.
  std::vector<AttentionArgs> calls(Machine& machine, const AttentionRun& run) const {
    int32_t longest = 0;
    for (const SequenceShape& seq : shape_.seqs) longest = std::max(longest, seq.num_kv_tokens());
    std::vector<int32_t> cuts = {0};
    cuts.insert(cuts.end(), run.splits.begin(), run.splits.end());
    cuts.push_back(longest);
    std::vector<AttentionArgs> calls;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const AttentionArgs args = call(machine, run, cuts[i], cuts[i + 1]);
      if (i == 0 && run.in_places) {
        calls.push_back(pages_in_places(machine, args, shape_.seed));
        continue;
      }
      if (i > 0 || run.gathered_entries == 0) {
        calls.push_back(args);
        continue;
      }
      for (int32_t entry = 0; entry < listed_in(args.selection)->page_ids.dim(3);
           entry += run.gathered_entries) {
        calls.push_back(pages_side_by_side(machine, args, entry, run.gathered_entries));
      }
    }
    return calls;
  }

  AttentionResult run(const AttentionRun& run) const {
    Machine machine(run.num_threads);
    const TensorView out =
        machine.tensor(DType::kBF16, {shape_.num_rows(), shape_.num_q_heads(), shape_.head_dim});
    std::vector<AttentionArgs> parts = calls(machine, run);
    for (AttentionArgs& part : parts) {
      if (run.convert != nullptr) part.kv = run.convert(machine, part.kv);
    }
    // Twice: the first run gives the output, the second the state.
    AttentionState state;
    for (bool to_output : {true, false}) {
      state = new_state(machine);
      for (size_t i = 0; i < parts.size(); ++i) {
        AttentionArgs args = parts[i];
        args.state = state;
        args.out = out;
        args.first = i == 0;
        args.last = to_output && i + 1 == parts.size();
        attend(machine, args, run.isa);
      }
      machine.synchronize();
    }
    return {bytes_of(out), bytes_of(state.acc), bytes_of(state.max), bytes_of(state.sum)};
  }

  AttentionState new_state(Machine& machine) const {
    const int64_t rows = shape_.num_rows();
    const int64_t heads = shape_.num_q_heads();
    return {.acc = machine.tensor(DType::kF32, {rows, heads, shape_.head_dim}),
            .max = machine.tensor(DType::kF32, {rows, heads}),
            .sum = machine.tensor(DType::kF32, {rows, heads})};
  }

 private:
  AttentionProblem() = default;

  void fill_blocks(Machine& machine, const AttentionRun& run, const std::vector<int32_t>& kv_begin,
                   const std::vector<int32_t>& kv_end, AttentionArgs& args) const {
    const KvBlockShape layout{.num_kv_heads = shape_.num_kv_heads,
                              .head_dim = shape_.head_dim,
                              .block_tokens = run.block_tokens};
    std::vector<int32_t> counts;
    for (size_t s = 0; s < kv_begin.size(); ++s) {
      counts.push_back((kv_end[s] - kv_begin[s] + run.block_tokens - 1) / run.block_tokens);
    }
    const int32_t num_used = std::accumulate(counts.begin(), counts.end(), 0);
    const int32_t width = std::max(1, *std::max_element(counts.begin(), counts.end()));
    std::vector<int32_t> order(static_cast<size_t>(num_used) + 3);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(shape_.seed));
    args.kv.shape = layout;
    args.kv.num_blocks = static_cast<int32_t>(order.size());
    args.kv.stride_bytes = layout.block_bytes() + 256;
    args.kv.base = machine.poisoned(order.size() * args.kv.stride_bytes);
    std::vector<int32_t> table(kv_begin.size() * static_cast<size_t>(width), -1);
    size_t next = 0;
    for (size_t s = 0; s < kv_begin.size(); ++s) {
      for (int32_t b = 0; b < counts[s]; ++b) {
        const int32_t index = order[next++];
        table[s * static_cast<size_t>(width) + static_cast<size_t>(b)] = index;
        const int32_t first = kv_begin[s] + b * run.block_tokens;
        copy_tokens(s, first, std::min(kv_end[s], first + run.block_tokens), args.kv, index);
      }
    }
    args.block_table = machine.tensor(table, {static_cast<int64_t>(kv_begin.size()), width});
  }

  void copy_tokens(size_t seq, int32_t begin, int32_t end, const KvBlocksView& kv,
                   int32_t block) const {
    const int64_t head_dim = shape_.head_dim;
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      for (int32_t token = begin; token < end; ++token) {
        const int64_t source =
            (static_cast<int64_t>(token) * shape_.num_kv_heads + head) * head_dim;
        std::copy_n(k_[seq].begin() + source, head_dim,
                    kv.keys<BFloat16>(block, head, token - begin));
        std::copy_n(v_[seq].begin() + source, head_dim,
                    kv.values<BFloat16>(block, head, token - begin));
      }
    }
  }

  void fill_pages(Machine& machine, const AttentionRun& run, AttentionArgs& args) const {
    const int32_t num_heads = run.one_list_for_all_heads ? 1 : shape_.num_kv_heads;
    const int32_t q_page_tokens =
        run.q_page_tokens > 0 ? run.q_page_tokens : std::numeric_limits<int32_t>::max();
    int32_t num_q_pages = 1;
    for (const SequenceShape& seq : shape_.seqs) {
      const int32_t last_page = (seq.num_kv_tokens() - 1) / q_page_tokens;
      num_q_pages = std::max(num_q_pages, last_page - seq.first_pos / q_page_tokens + 1);
    }
    const std::vector<std::vector<int32_t>> lists =
        lists_of(run, q_page_tokens, num_heads, num_q_pages);
    const auto num_seqs = static_cast<int64_t>(shape_.seqs.size());
    if (run.as_mask) {
      args.selection = MaskedTiles{
          .mask = mask_of(machine, lists, {num_seqs, num_heads, num_q_pages}), .columns = {}};
      return;
    }
    size_t width = 1;  // one more than the longest list: that entry must not be read
    for (const std::vector<int32_t>& list : lists) width = std::max(width, list.size() + 1);
    std::vector<int32_t> ids(lists.size() * width, 1 << 20);
    std::vector<int32_t> counts;
    for (size_t i = 0; i < lists.size(); ++i) {
      std::copy(lists[i].begin(), lists[i].end(),
                ids.begin() + static_cast<int64_t>(i) * static_cast<int64_t>(width));
      counts.push_back(static_cast<int32_t>(lists[i].size()));
    }
    args.selection =
        PageList{.page_ids = machine.tensor(
                     ids, {num_seqs, num_heads, num_q_pages, static_cast<int64_t>(width)}),
                 .page_count = machine.tensor(counts, {num_seqs, num_heads, num_q_pages}),
                 .page_tokens = run.page_tokens,
                 .q_page_tokens = run.q_page_tokens};
  }

  void fill_columns(Machine& machine, const AttentionRun& run, AttentionArgs& args) const {
    const int32_t first = shape_.seqs[0].first_pos / run.segment_tokens;
    const int32_t last = (shape_.seqs[0].num_kv_tokens() - 1) / run.segment_tokens;
    if (masked_in(args.selection) == nullptr) args.selection = MaskedTiles{};
    std::get<MaskedTiles>(args.selection).columns =
        make_columns(machine, run.columns_of,
                     {.num_lists = run.one_list_for_all_heads ? 1 : shape_.num_kv_heads,
                      .first_segment = first,
                      .num_segments = last - first + 1,
                      .segment_tokens = run.segment_tokens,
                      .num_kv_heads = shape_.num_kv_heads,
                      .head_dim = shape_.head_dim,
                      .k = k_[0].data(),
                      .v = v_[0].data()});
  }

  // The lists of every sequence, head and query page, in this order.
  std::vector<std::vector<int32_t>> lists_of(const AttentionRun& run, int32_t q_page_tokens,
                                             int32_t num_heads, int32_t num_q_pages) const {
    std::vector<std::vector<int32_t>> lists;
    for (int32_t seq = 0; seq < static_cast<int32_t>(shape_.seqs.size()); ++seq) {
      const int32_t first = shape_.seqs[static_cast<size_t>(seq)].first_pos / q_page_tokens;
      for (int32_t list = 0; list < num_heads * num_q_pages; ++list) {
        lists.push_back(run.list_of
                            ? run.list_of(seq, list / num_q_pages, first + list % num_q_pages)
                            : *run.pages);
      }
    }
    return lists;
  }

  // The same tiles as bits. REQUIRES: all sequences begin in the same query tile, the mask's first.
  TileMask mask_of(Machine& machine, const std::vector<std::vector<int32_t>>& lists,
                   std::initializer_list<int64_t> entries) const {
    const int32_t first_q_tile = shape_.seqs[0].first_pos / kMaskTileTokens;
    for (const SequenceShape& seq : shape_.seqs) {
      SLUICE_CHECK(seq.first_pos / kMaskTileTokens == first_q_tile, "first row {}", seq.first_pos);
    }
    int32_t num_words = 1;
    for (const SequenceShape& seq : shape_.seqs) {
      num_words = std::max(num_words, seq.num_kv_tokens() / (32 * kMaskTileTokens) + 1);
    }
    std::vector<int32_t> words;
    for (const std::vector<int32_t>& list : lists) {
      std::vector<uint32_t> entry(static_cast<size_t>(num_words));
      for (const int32_t tile : list) {
        if (tile < num_words * 32) entry[static_cast<size_t>(tile / 32)] |= 1u << (tile % 32);
      }
      words.insert(words.end(), entry.begin(), entry.end());
    }
    const int64_t* dims = entries.begin();
    return {.bits = machine.tensor(words, {dims[0], dims[1], dims[2], num_words}),
            .first_q_tile = first_q_tile};
  }

  AttentionShape shape_;
  std::vector<BFloat16> q_;
  std::vector<std::vector<BFloat16>> k_, v_;  // per sequence [token][kv_head][head_dim]
};

}  // namespace sluice::testing
