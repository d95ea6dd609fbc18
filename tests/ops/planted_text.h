// One sequence whose queries and keys a test chooses, for the tests of tile selection.
//
// Thread rule: host thread.
#pragma once

#include <functional>
#include <vector>

#include "op_test_util.h"
#include "ops/tiles/tile_selection.h"

namespace sluice::testing {

class PlantedText {
 public:
  static constexpr int32_t kHeadDim = 16;  // where nothing depends on it

  // Numbers of token `position` of a head: head_dim of them, the same number for all.
  using Numbers = std::function<std::vector<float>(int32_t position, int32_t head)>;

  PlantedText(int32_t num_tokens, const Numbers& queries, const Numbers& keys,
              int32_t num_kv_heads = 1, int32_t group = 1)
      : num_tokens_(num_tokens),
        num_kv_heads_(num_kv_heads),
        group_(group),
        head_dim_(static_cast<int32_t>(keys(0, 0).size())) {
    for (int32_t position = 0; position < num_tokens; ++position) {
      for (int32_t head = 0; head < num_kv_heads * group; ++head) add(queries(position, head), q_);
      for (int32_t head = 0; head < num_kv_heads; ++head) add(keys(position, head), k_);
    }
  }

  // Random queries and keys with normal distribution.
  static PlantedText random(int32_t num_tokens, uint32_t seed, int32_t num_kv_heads = 1,
                            int32_t group = 1, int32_t head_dim = kHeadDim) {
    std::mt19937 generator(seed);
    const auto numbers = [&](int32_t, int32_t) {
      std::normal_distribution<float> normal;
      std::vector<float> result(static_cast<size_t>(head_dim));
      for (float& number : result) number = normal(generator);
      return result;
    };
    return PlantedText(num_tokens, numbers, numbers, num_kv_heads, group);
  }

  int32_t num_tokens() const { return num_tokens_; }
  int32_t num_q_heads() const { return num_kv_heads_ * group_; }
  int32_t head_dim() const { return head_dim_; }

  // Rows [first_pos, num_tokens) against all keys, in blocks of `block_tokens`.
  ScoreTilesArgs call(Machine& machine, const TileProbes& probes, int32_t first_pos = 0,
                      int32_t block_tokens = 64) const {
    const int32_t num_rows = num_tokens_ - first_pos;
    const int32_t num_q_heads = num_kv_heads_ * group_;
    const std::vector<BFloat16> rows(q_.begin() + int64_t{first_pos} * num_q_heads * head_dim_,
                                     q_.end());
    ScoreTilesArgs args{.q = machine.tensor(rows, {num_rows, num_q_heads, head_dim_}),
                        .scale = 0.25f,
                        .probes = probes};
    args.batch = {.row_begin = machine.tensor(std::vector<int32_t>{0, num_rows}, {2}),
                  .first_pos = machine.tensor(std::vector<int32_t>{first_pos}, {1}),
                  .max_rows = num_rows,
                  .max_kv_tokens = num_tokens_};
    args.rows = {.first = 0, .count = num_rows};
    args.kv_begin = machine.tensor(std::vector<int32_t>{0}, {1});
    args.kv_end = machine.tensor(std::vector<int32_t>{num_tokens_}, {1});
    fill_blocks(machine, block_tokens, args);
    const int64_t num_probes =
        (num_rows + kMaskTileTokens - 1) / kMaskTileTokens * probes_per_tile(probes);
    args.vectors =
        machine.tensor(DType::kBF16, {num_q_heads, num_probes, probe_width(probes, head_dim_)});
    args.records = machine.tensor(
        DType::kF32,
        {num_q_heads, num_probes, (num_tokens_ + kMaskTileTokens - 1) / kMaskTileTokens});
    return args;
  }

 private:
  void add(const std::vector<float>& numbers, std::vector<BFloat16>& to) const {
    SLUICE_CHECK(std::ssize(numbers) == head_dim_, "{} numbers", numbers.size());
    for (const float number : numbers) to.emplace_back(number);
  }

  // Keys in ascending blocks; values and tokens past the last are NaN.
  void fill_blocks(Machine& machine, int32_t block_tokens, ScoreTilesArgs& args) const {
    const int32_t num_blocks = (num_tokens_ + block_tokens - 1) / block_tokens;
    args.kv.shape = {
        .num_kv_heads = num_kv_heads_, .head_dim = head_dim_, .block_tokens = block_tokens};
    args.kv.num_blocks = num_blocks;
    args.kv.stride_bytes = args.kv.shape.block_bytes();
    args.kv.base = machine.poisoned(args.kv.stride_bytes * static_cast<size_t>(num_blocks));
    for (int32_t position = 0; position < num_tokens_; ++position) {
      for (int32_t head = 0; head < num_kv_heads_; ++head) {
        const auto* key = k_.data() + (int64_t{position} * num_kv_heads_ + head) * head_dim_;
        std::copy_n(key, head_dim_,
                    args.kv.keys<BFloat16>(position / block_tokens, head, position % block_tokens));
      }
    }
    std::vector<int32_t> table;
    for (int32_t block = 0; block < num_blocks; ++block) table.push_back(block);
    args.block_table = machine.tensor(table, {1, num_blocks});
  }

  int32_t num_tokens_;
  int32_t num_kv_heads_;
  int32_t group_;
  int32_t head_dim_;
  std::vector<BFloat16> q_;  // [num_tokens][num_q_heads][head_dim]
  std::vector<BFloat16> k_;  // [num_tokens][num_kv_heads][head_dim]
};

}  // namespace sluice::testing
