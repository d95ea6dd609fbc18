// Orders codes of GGUF's blocks for the kernels while they go through pinned memory, and the words
// of their values (GgufLayout).
//
// Bound: the host's threads, which read one byte for each code.
#include <cstring>

#include "ops/cuda/matmul/gguf.h"
#include "ops/cuda/matmul/pack_codes.h"
#include "ops/cuda/op_memory.h"

namespace sluice::cuda {
namespace {

constexpr uint32_t kSignBits = 0x80808080u;  // turned over, bytes count from -128 on
constexpr int64_t kWordCodes = 4;

// A row of codes of 8 bits in the order of GgufLayout; past its end they are 0.
void pack_gguf8_row(const uint8_t* codes, int64_t k, std::byte* to) {
  for (int64_t first = 0; first < (k + 127) / 128 * 128; first += 64) {
    for (int64_t i = 0; i < 64 / kWordCodes; ++i, to += sizeof(uint32_t)) {
      const int64_t column = first + i % 4 * 16 + i / 4 * kWordCodes;
      uint32_t word = 0;
      if (column < k) std::memcpy(&word, codes + column, sizeof word);
      word ^= kSignBits;
      std::memcpy(to, &word, sizeof word);
    }
  }
}

// Reads the values of rows of `src` as words. Host threads ask for each word once, in the order of
// memory.
class WordReader {
 public:
  WordReader(const PackWeightArgs& args, const GgufLayout& layout)
      : values_(args.values),
        layout_(layout),
        num_groups_(args.dst.num_cols / args.dst.format.group_cols),
        num_blocks_(args.dst.num_cols / args.dst.format.block_cols),
        block_cols_(args.dst.format.block_cols) {}

  // Word `line` of a row: words.count for each 128 columns.
  uint32_t word(int64_t line, int64_t row) const {
    const int64_t column = line / layout_.words.count * 128;
    const auto word = static_cast<int32_t>(line % layout_.words.count);
    const auto& words = layout_.words;
    if (word >= words.scales_at) return scales(row, column, word - words.scales_at);
    if (word >= words.minima_at) return bytes(values_.minima, row, column, word - words.minima_at);
    return bytes(values_.factors, row, column, word) ^ kSignBits;
  }

 private:
  // Those past the end of the row are 0.
  uint32_t bytes(const TensorView& from, int64_t row, int64_t column, int64_t word) const {
    const int64_t first = column / layout_.group_cols + word * kWordCodes;
    uint32_t four = 0;
    for (int64_t i = 0; i < kWordCodes && first + i < num_groups_; ++i) {
      four |= uint32_t{from.data<uint8_t>()[row * num_groups_ + first + i]} << (8 * i);
    }
    return four;
  }

  // The bits of a scale; past the end of the row 0, so that padding adds nothing.
  uint32_t half(const TensorView& from, int64_t row, int64_t block) const {
    return block < num_blocks_ ? from.data<Float16>()[row * num_blocks_ + block].bits : 0;
  }

  // A word from scales_at on: a block and its min_scale, or two blocks.
  uint32_t scales(int64_t row, int64_t column, int64_t word) const {
    const int64_t of_word = layout_.has_minima ? word : 2 * word;
    const int64_t block = column / block_cols_ + of_word;
    const uint32_t second = layout_.has_minima ? half(values_.min_scales, row, block)
                                               : half(values_.scales, row, block + 1);
    return half(values_.scales, row, block) | second << 16;
  }

  const GgufValues& values_;
  const GgufLayout& layout_;
  int64_t num_groups_;
  int64_t num_blocks_;
  int64_t block_cols_;
};

}  // namespace

void pack_gguf(cudaStream_t handle, const PackWeightArgs& args, MatmulState& state) {
  const GgufLayout layout = gguf_layout(args.dst.format, args.dst.num_rows, args.dst.num_cols);
  pack_rows(handle, args, layout.row_bytes, layout.is_4 ? pack_uint4_row : pack_gguf8_row, state);
  const WordReader values(args, layout);
  const ValueLines lines = {
      .first = args.dst.data + layout.values_at,
      .num_lines = layout.row_bytes / (layout.is_4 ? 64 : 128) * layout.words.count,
      .stride = args.dst.num_rows};
  const auto value_of = [&](int64_t line, int64_t row) { return values.word(line, row); };
  pack_values<uint32_t>(handle, args, lines, value_of, state);
}

}  // namespace sluice::cuda
