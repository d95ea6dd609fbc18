// Runs passes over sequences with random queries, keys and values in a device pool, through a
// policy and an executor.
//
// Used by the tests of policies. The values of a row depend on its sequence and position alone, not
// on the pass that the row is in. Pool memory that no pass has written is NaN. Thread rule: host
// thread; CPU device only, whose memory the host may read between passes.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attention/resident_executor.h"
#include "attention/rig_sequences.h"
#include "device/device.h"
#include "kv/block_memory.h"

namespace sluice::testing {

class PolicyRig {
 public:
  static constexpr int32_t kLayers = 2, kKvHeads = 2, kQueryHeads = 4, kHeadDim = 32;
  static constexpr int32_t kBlockTokens = 64, kMaxTokens = 1024, kSeqs = 3;
  static constexpr float kScale = 0.18f;

  explicit PolicyRig(std::unique_ptr<PolicyPair> policies, int32_t block_tokens = kBlockTokens,
                     int32_t max_tokens = kMaxTokens, HeadShare share = {}, RigZones zones = {})
      : block_tokens_(block_tokens),
        max_tokens_(max_tokens),
        zones_(zones),
        policies_(std::move(policies)),
        pool_(*device_, layout(block_tokens), kSeqs * blocks_per_seq()),
        executor_(
            *policies_, pool_, zones.are_queries() ? zones.chunk_tokens : 0,
            SoftmaxState(*device_, zones.are_queries() ? max_tokens : 0, kQueryHeads, kHeadDim)) {
    PairLimits limits = PolicyRig::limits(max_tokens, share);
    limits.has_zones = zones.are_queries();
    policies_->initialize(*device_, pool_.layout(), pool_.num_blocks(), limits);
  }

  static KvLayout layout(int32_t block_tokens = kBlockTokens) {
    return {
        .num_layers = kLayers,
        .block = {.num_kv_heads = kKvHeads, .head_dim = kHeadDim, .block_tokens = block_tokens}};
  }
  static PairLimits limits(int32_t max_tokens = kMaxTokens, HeadShare share = {}) {
    return {.max_decode_seqs = kSeqs,
            .max_prefill_rows = max_tokens,
            .max_tokens = max_tokens,
            .num_q_heads = kQueryHeads,
            .share = share};
  }

  const PolicyPair& policies() const { return *policies_; }
  SelectionRule rule(Phase phase) const { return policies_->rule(phase, pool_.layout().block); }
  Stream& stream() { return *stream_; }

  // Writes the rows' keys and values and runs all layers. Returns the output of the last layer's
  // rows, [rows, kQueryHeads, kHeadDim].
  std::vector<BFloat16> run(Phase phase, const std::vector<Span>& spans) {
    const AttentionPass pass = make_pass(phase, spans);
    const TensorView q = queries(spans);
    const TensorView out = tensor<BFloat16>({q.dim(0), kQueryHeads, kHeadDim});
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      write_rows(executor_.write_target(pass, LayerId(layer)), layer, spans);
      executor_.attend(*stream_, pass,
                       {.layer = LayerId(layer),
                        .q = q,
                        .out = out,
                        .zones = zones_of(pass, spans),
                        .scale = kScale});
      stream_->synchronize();
    }
    const BFloat16* first = out.data<BFloat16>();
    return {first, first + out.num_elements()};
  }

  // What the last layer of a `run` of one span selected.
  Selection selected(const Span& span) {
    const AttentionPass pass = make_pass(Phase::kPrefill, {span});
    return policies_->of(Phase::kPrefill)
        .select(*stream_, {.layer = LayerId(kLayers - 1),
                           .q = queries({span}),
                           .batch = pass.batch,
                           .span = spans_[0],
                           .kv_end = pass.kv_end,
                           .block_ids = pass.block_ids});
  }

  // How keys are shown to a policy of prefill. 0: all rows and all keys at once.
  struct Cuts {
    int32_t window_rows = 0;
    int32_t run_tokens = 0;
  };

  // The policy's selection of a layer for rows that `run` has processed. REQUIRES: prefill: one
  // span.
  Selection select(Phase phase, const std::vector<Span>& spans, int32_t layer = kLayers - 1,
                   const Cuts& cuts = {0, 0}) {
    const AttentionPass pass = make_pass(phase, spans);
    SelectInput input{.layer = LayerId(layer),
                      .q = queries(spans),
                      .scale = kScale,
                      .batch = pass.batch,
                      .span = spans_[0],
                      .kv_end = pass.kv_end,
                      .block_ids = pass.block_ids};
    if (phase == Phase::kPrefill) show_keys(pass, input, cuts);
    const Selection selection = policies_->of(phase).select(*stream_, input);
    stream_->synchronize();
    return selection;
  }

  // The keys of a layer and the rows of a span that `run` has processed, for the reference of
  // score_tiles.
  ScoreTilesArgs rows_and_keys(const Span& span, const TileProbes& probes,
                               int32_t layer = kLayers - 1) {
    const AttentionPass pass = make_pass(Phase::kPrefill, {span});
    return {.q = queries({span}),
            .batch = pass.batch,
            .rows = {.first = 0, .count = span.num_rows},
            .scale = kScale,
            .kv = pool_.layer(LayerId(layer)),
            .kv_begin = pass.kv_begin,
            .kv_end = pass.kv_end,
            .block_table = pass.block_table,
            .probes = probes};
  }

  // The same as lists, ordered by row, then by KV head. Tiles of a mask are pages of 128 tokens.
  std::vector<PageIds> lists(Phase phase, const std::vector<Span>& spans,
                             int32_t layer = kLayers - 1) {
    const Selection selection = select(phase, spans, layer);
    if (const MaskedTiles* tiles = masked_in(selection)) return lists_of(tiles->mask, spans[0]);
    const PageList& pages = std::get<PageList>(selection);
    page_tokens_ = pages.page_tokens;
    std::vector<PageIds> result;
    for (size_t s = 0; s < spans.size(); ++s) {
      for (int32_t pos = spans[s].first_pos; pos < spans[s].end_pos(); ++pos) {
        const int32_t q_page =
            pages.q_page_tokens == 0
                ? 0
                : pos / pages.q_page_tokens - spans[s].first_pos / pages.q_page_tokens;
        for (int64_t head = 0; head < kKvHeads; ++head) {
          result.push_back(read_list(pages, static_cast<int64_t>(s), head, q_page));
        }
      }
    }
    return result;
  }
  int32_t page_tokens() const { return page_tokens_; }  // of the last lists

  // The expected result of `run` for these rows: attention over the tokens of the policy's lists
  // (or over all tokens) in double precision.
  std::vector<double> expected_output(const std::vector<Span>& spans, Phase phase) {
    std::vector<PageIds> row_lists;
    TileColumns columns;
    if (rule(phase).selects()) {
      const Selection selection = select(phase, spans);
      if (const MaskedTiles* tiles = masked_in(selection)) columns = tiles->columns;
      row_lists = lists(phase, spans);
    }
    std::vector<double> out;
    size_t row = 0;
    for (const Span& span : spans) {
      for (int32_t pos = span.first_pos; pos < span.end_pos(); ++pos, ++row) {
        for (int32_t h = 0; h < kQueryHeads; ++h) {
          const int32_t kv_head = h / (kQueryHeads / kKvHeads);
          std::vector<int32_t> tokens;
          for (int32_t t = 0; t <= pos; ++t) {
            const auto index = row * kKvHeads + static_cast<size_t>(kv_head);
            if (row_lists.empty() ||
                std::binary_search(row_lists[index].begin(), row_lists[index].end(),
                                   t / page_tokens_) ||
                is_column(columns, kv_head, pos, t)) {
              tokens.push_back(t);
            }
          }
          append_attention(span.seq, pos, h, tokens, out);
        }
      }
    }
    return out;
  }

  // Whether the token is a column of the row at `pos`.
  static bool is_column(const TileColumns& columns, int32_t kv_head, int32_t pos, int32_t token) {
    if (!columns.present()) return false;
    const int64_t list_head = columns.count.dim(0) == 1 ? 0 : kv_head;
    const int64_t list =
        list_head * columns.count.dim(1) + pos / columns.segment_tokens - columns.first_segment;
    const int32_t* first = columns.positions.data<int32_t>() + list * columns.positions.dim(2);
    return std::binary_search(first, first + columns.count.data<int32_t>()[list], token);
  }

  // Bound of the error of one output value. Inputs are at most 2. A score is the sum of kHeadDim
  // products of at most 4, with two roundings each. The error of a weight is twice the score's
  // error, the rounding of exp and of one addition per token, and half a unit of bf16 where a
  // kernel rounds weights. The output is an average of values, rounded to bf16.
  static double output_bound(double expected) {
    constexpr double kRoundingF32 = 0x1p-24, kRoundingBF16 = 0x1p-8, kLargest = 2.0;
    constexpr double kScore =
        (2.0 * kHeadDim + 2.0) * kRoundingF32 * kHeadDim * kLargest * kLargest * kScale;
    constexpr double kWeight =
        2.0 * kScore + (2.0 * kMaxTokens + 64.0) * kRoundingF32 + kRoundingBF16;
    return kRoundingBF16 * std::abs(expected) * 1.01 + kWeight * kLargest;
  }

  // Makes a key of sequence 0 four times the query of another position, so that it is the best key
  // for that query. Call it before the key's position is run.
  struct Key {
    int32_t layer = kLayers - 1;
    int32_t kv_head = 0;
    int32_t pos = 0;
    auto operator<=>(const Key&) const = default;
  };
  void plant(const Key& key, int32_t query_pos) { planted_[key] = query_pos; }

 private:
  template <typename T>
  TensorView tensor(std::initializer_list<int64_t> dims) {
    const TensorView shape(nullptr, kDTypeOf<T>, dims);
    buffers_.push_back(device_->allocate(shape.num_bytes() + 1, MemoryKind::kDevice));
    return TensorView(buffers_.back().data(), kDTypeOf<T>, dims);
  }

  TensorView ints(const std::vector<int32_t>& values, std::initializer_list<int64_t> dims) {
    const TensorView view = tensor<int32_t>(dims);
    std::memcpy(view.bytes(), values.data(), view.num_bytes());
    return view;
  }

  AttentionPass make_pass(Phase phase, const std::vector<Span>& spans) {
    const auto num_seqs = static_cast<int64_t>(spans.size());
    AttentionPass pass;
    pass.kind = phase;
    spans_.clear();
    std::vector<int32_t> row_begin{0}, first_pos, kv_begin, kv_end, table;
    for (const Span& span : spans) {
      row_begin.push_back(row_begin.back() + span.num_rows);
      first_pos.push_back(span.first_pos);
      kv_begin.push_back(0);
      kv_end.push_back(span.end_pos());
      spans_.push_back({.first_pos = span.first_pos,
                        .num_rows = span.num_rows,
                        .prompt_end = span.prompt_end > 0 ? span.prompt_end : span.end_pos()});
      for (int32_t b = 0; b < blocks_per_seq(); ++b) table.push_back(block_of(span.seq, b));
      pass.batch.max_rows = std::max(pass.batch.max_rows, span.num_rows);
      pass.batch.max_kv_tokens = std::max(pass.batch.max_kv_tokens, span.end_pos());
    }
    pass.spans = spans_;
    pass.batch.row_begin = ints(row_begin, {num_seqs + 1});
    pass.batch.first_pos = ints(first_pos, {num_seqs});
    pass.kv_begin = ints(kv_begin, {num_seqs});
    pass.kv_end = ints(kv_end, {num_seqs});
    pass.block_table = ints(table, {num_seqs, blocks_per_seq()});
    pass.block_ids = pass.block_table;
    if (zones_.are_queries()) {
      std::vector<int32_t> borders;
      for (int32_t at = 0; at <= max_tokens_ + zones_.chunk_tokens; at += zones_.chunk_tokens) {
        borders.push_back(at);
      }
      pass.chunk_borders = ints(borders, {std::ssize(borders)});
    }
    return pass;
  }

  // Blocks of different sequences are interleaved in the pool.
  int32_t block_of(int32_t seq, int32_t index) const {
    return (blocks_per_seq() - 1 - index) * kSeqs + seq;
  }
  int32_t blocks_per_seq() const { return max_tokens_ / block_tokens_; }

  // Windows of rows, and for each the runs of keys.
  void show_keys(const AttentionPass& pass, const SelectInput& input, const Cuts& cuts) {
    Policy& policy = policies_->of(Phase::kPrefill);
    TileScorer* scorer = policy.tile_scorer();
    if (scorer == nullptr || scorer->window_rows(input) == 0) return;
    const auto num_rows = static_cast<int32_t>(input.span.num_rows);
    const auto num_tokens = static_cast<int32_t>(input.span.end_pos());
    const int32_t window_rows = cuts.window_rows > 0 ? cuts.window_rows : num_rows;
    const int32_t run_tokens = cuts.run_tokens > 0 ? cuts.run_tokens : num_tokens;
    for (int32_t first = 0; first < num_rows; first += window_rows) {
      const TileRows window{first, std::min(window_rows, num_rows - first)};
      for (int32_t walk = scorer->first_walk(input); walk < scorer->num_walks(); ++walk) {
        for (int32_t begin = 0; begin < num_tokens; begin += run_tokens) {
          const int32_t end = std::min(begin + run_tokens, num_tokens);
          const int32_t first_block = begin / block_tokens_;
          const int64_t num_blocks = blocks_for_tokens(end, block_tokens_) - first_block;
          const TensorView table = pass.block_table.reshape({pass.block_table.dim(1)});
          scorer->score(
              *stream_, input, window,
              {.kv = pool_.layer(input.layer),
               .kv_begin = ints({begin}, {1}),
               .kv_end = ints({end}, {1}),
               .block_table = table.rows(first_block, num_blocks).reshape({1, num_blocks}),
               .walk = walk});
        }
        scorer->end_walk(*stream_, input, window, walk);
      }
      scorer->choose(*stream_, input, window);
    }
  }

  std::vector<PageIds> lists_of(const TileMask& mask, const Span& span) {
    page_tokens_ = kMaskTileTokens;
    std::vector<PageIds> result;
    for (int32_t pos = span.first_pos; pos < span.end_pos(); ++pos) {
      for (int64_t head = 0; head < kKvHeads; ++head) {
        const int64_t list_head = mask.bits.dim(1) == 1 ? 0 : head;
        const int64_t entry =
            list_head * mask.bits.dim(2) + pos / kMaskTileTokens - mask.first_q_tile;
        const int32_t* words = mask.bits.data<int32_t>() + entry * mask.bits.dim(3);
        PageIds& tiles = result.emplace_back();
        for (int32_t tile = 0; tile < 32 * mask.bits.dim(3); ++tile) {
          if ((words[tile / 32] >> (tile % 32) & 1) != 0) tiles.push_back(tile);
        }
      }
    }
    return result;
  }

  QueryZones zones_of(const AttentionPass& pass, const std::vector<Span>& spans) {
    if (!zones_.are_queries() || pass.batch.max_kv_tokens <= zones_.chunk_tokens) return {};
    return {
        .before = queries(spans, 2), .far = queries(spans, 4), .chunk_tokens = zones_.chunk_tokens};
  }

  TensorView queries(const std::vector<Span>& spans, float factor = 1) {
    int64_t num_rows = 0;
    for (const Span& span : spans) num_rows += span.num_rows;
    const TensorView q = tensor<BFloat16>({num_rows, kQueryHeads, kHeadDim});
    BFloat16* out = q.data<BFloat16>();
    for (const Span& span : spans) {
      for (int32_t pos = span.first_pos; pos < span.end_pos(); ++pos) {
        for (int32_t h = 0; h < kQueryHeads; ++h) {
          for (int32_t d = 0; d < kHeadDim; ++d) {
            *out++ = BFloat16(factor * value_at(kQuery, 0, span.seq, pos, h, d));
          }
        }
      }
    }
    return q;
  }

  float key_at(int32_t layer, int32_t seq, int32_t pos, int32_t head, int32_t d) const {
    const auto found = planted_.find({.layer = layer, .kv_head = head, .pos = pos});
    const float factor = zones_.key_factor(pos);
    if (seq != 0 || found == planted_.end()) {
      return factor * value_at(kKey, layer, seq, pos, head, d);
    }
    return factor * 4 * value_at(kQuery, 0, seq, found->second, head * (kQueryHeads / kKvHeads), d);
  }

  static double rounded(float value) { return static_cast<float>(BFloat16(value)); }

  void append_attention(int32_t seq, int32_t pos, int32_t query_head,
                        const std::vector<int32_t>& tokens, std::vector<double>& out) const {
    const int32_t layer = kLayers - 1, kv_head = query_head / (kQueryHeads / kKvHeads);
    std::vector<double> weights;
    double largest = -1e300, sum = 0;
    for (const int32_t t : tokens) {
      double dot = 0;
      for (int32_t d = 0; d < kHeadDim; ++d) {
        dot += rounded(value_at(kQuery, 0, seq, pos, query_head, d)) *
               rounded(key_at(layer, seq, t, kv_head, d));
      }
      weights.push_back(kScale * dot);
      largest = std::max(largest, weights.back());
    }
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (int32_t d = 0; d < kHeadDim; ++d) {
      double value = 0;
      for (size_t i = 0; i < tokens.size(); ++i) {
        value += weights[i] / sum * rounded(value_at(kValue, layer, seq, tokens[i], kv_head, d));
      }
      out.push_back(value);
    }
  }

  void write_rows(const KvBlocksView& kv, int32_t layer, const std::vector<Span>& spans) const {
    for (const Span& span : spans) {
      for (int32_t pos = span.first_pos; pos < span.end_pos(); ++pos) {
        const int32_t block = block_of(span.seq, pos / block_tokens_);
        for (int32_t h = 0; h < kKvHeads; ++h) {
          auto* key = kv.keys<BFloat16>(block, h, pos % block_tokens_);
          auto* value = kv.values<BFloat16>(block, h, pos % block_tokens_);
          for (int32_t d = 0; d < kHeadDim; ++d) {
            key[d] = BFloat16(key_at(layer, span.seq, pos, h, d));
            value[d] = BFloat16(value_at(kValue, layer, span.seq, pos, h, d));
          }
        }
      }
    }
  }

  static PageIds read_list(const PageList& pages, int64_t seq, int64_t head, int64_t q_page) {
    const int64_t list_head = pages.page_ids.dim(1) == 1 ? 0 : head;
    const int64_t list = (seq * pages.page_ids.dim(1) + list_head) * pages.page_ids.dim(2) + q_page;
    const int32_t* first = pages.page_ids.data<int32_t>() + list * pages.page_ids.dim(3);
    return {first, first + pages.page_count.data<int32_t>()[list]};
  }

  int32_t block_tokens_;
  int32_t max_tokens_;
  RigZones zones_;
  std::unique_ptr<Device> device_ = make_device("cpu", {.num_threads = 2});
  std::unique_ptr<PolicyPair> policies_;
  DevicePool pool_;
  ResidentExecutor executor_;
  std::vector<Buffer> buffers_;
  std::vector<PrefillSpan> spans_;  // of the last pass
  std::map<Key, int32_t> planted_;  // -> position of the query
  int32_t page_tokens_ = 0;
  // Last member, so that its destructor waits before the memory is freed.
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "compute", .num_threads = 2});
};

}  // namespace sluice::testing
