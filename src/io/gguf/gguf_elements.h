// The elements of a GGUF tensor as F32, in the order and with the values of Hugging Face's files.
//
// Used by Checkpoint. Thread rule: free functions without state.
#pragma once

#include <cstdint>
#include <span>

#include "io/gguf/gguf_blocks.h"
#include "io/model_file.h"

namespace sluice {

// What llama.cpp's converter did to each element, which reading undoes.
enum class GgufConversion {
  kStored,   // nothing
  kPlusOne,  // stored w + 1: weights of norms that multiply by 1 + w
  kDecay,    // stored -exp(w): A_log
};

// Heads of `unit` rows or columns, from `begin` on, that the file has in another order: of groups
// of `per_group` heads first the first of each group, then the second.
struct TiledHeads {
  int64_t begin = 0;
  int64_t unit = 0;  // 0: all are in order
  int64_t num_groups = 0;
  int64_t per_group = 0;

  bool present() const { return unit != 0; }
  int64_t end() const { return begin + unit * num_groups * per_group; }
  // Where the file has the row or column.
  int64_t in_file(int64_t index) const;
};

// How the elements of a tensor are stored.
struct GgufStorage {
  const GgufType* type = nullptr;
  int64_t row_elements = 0;  // whole blocks
  // Of tensors whose rows llama.cpp has reordered in each head (the rows that rotate together side
  // by side): rows of a head; else 0.
  int64_t rotated_head_rows = 0;
  TiledHeads tiled_rows = {};
  TiledHeads tiled_columns = {};
  GgufConversion values = GgufConversion::kStored;
};

// Reads elements [first, first + dst.size()) of the tensor at byte `begin` of a file, rows and
// columns in the order of Hugging Face. A decay that is not below 0 gives NaN or an infinity.
// Cost: with tiled columns each row is decoded whole. Errors: those of ModelFile::read.
void read_gguf_elements(const ModelFile& file, uint64_t begin, const GgufStorage& storage,
                        int64_t first, std::span<float> dst);

// Reads the blocks of elements [first, first + n) of the tensor as the file has them, rows in the
// order of Hugging Face. REQUIRES: whole blocks, and no tiled columns. Errors: as above.
void read_gguf_blocks(const ModelFile& file, uint64_t begin, const GgufStorage& storage,
                      int64_t first, std::span<std::byte> dst);

}  // namespace sluice
