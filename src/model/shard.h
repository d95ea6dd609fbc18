// Shard: what part of a model one of several ranks has (tensor parallelism).
//
// Each rank has whole query heads with the KV heads that they read, whole key heads of linear
// layers with their value heads, and as many of the hidden channels of each MLP: rows of the
// projections to them, columns of those from them. So the outputs of mixers and of MLPs are sums
// over the ranks (device/collectives.h); all else is the same on every rank. Where there are fewer
// KV heads than ranks, neighbouring ranks have the same KV head. Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct ModelConfig;

// Rows and columns of a tensor that a source reads: as many as the source has, from the begins on.
// An axis whose number is 0 is read whole.
struct TensorSlice {
  int64_t row_begin = 0;
  int64_t num_rows = 0;  // of the tensor
  int64_t col_begin = 0;
  int64_t num_cols = 0;

  bool present() const { return num_rows != 0 || num_cols != 0; }
};

struct Shard {
  int32_t rank = 0;
  int32_t num_ranks = 1;

  bool operator==(const Shard&) const = default;

  bool is_part() const { return num_ranks > 1; }
  // The one rank that adds what all ranks have, as a bias of the output.
  bool is_first() const { return rank == 0; }
  // Of a tensor that has `count` rows, or columns, on each rank.
  TensorSlice rows(int64_t count) const {
    if (!is_part()) return {};
    return {.row_begin = rank * count, .num_rows = num_ranks * count};
  }
  TensorSlice columns(int64_t count) const {
    if (!is_part()) return {};
    return {.col_begin = rank * count, .num_cols = num_ranks * count};
  }
};

// The configuration of what a rank has: its heads and hidden channels in each layer. The same
// configuration for one rank. Errors: kInvalidArgument for a number of ranks that does not divide
// the model, naming those that do.
ModelConfig shard_of(const ModelConfig& config, Shard shard);

}  // namespace sluice
