// ScopedPolicy: a prefill policy for tests whose tiles depend on every input that the promise of
// scopes allows (attention/policy.h), and on no other one.
//
// Used by tests of the engine and of offload. Tiles follow from a hash of the queries of the row's
// scope, of the prompt's end in its last rows and, with `window_rows`, of all bytes of the keys. A
// query or key that is missing, new or wrong changes them. With more `looks_at` than `scope_tokens`
// the policy itself breaks the promise. CPU device only. Thread rule: as Policy.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

#include "attention/policies/full.h"
#include "attention/policy_pair.h"
#include "attention/tile_scorer.h"
#include "core/arena.h"
#include "core/error.h"
#include "device/cpu/cpu_stream.h"

namespace sluice::testing {

class ScopedPolicy final : public Policy, public TileScorer {
 public:
  struct Options {
    int32_t scope_tokens = 128;
    int32_t looks_at = 128;    // rows whose queries the tiles of a row depend on
    int32_t tail_tokens = 0;   // tiles with one of the prompt's last rows attend to everything
    int32_t window_rows = 0;   // scores keys, in windows of this many rows
    int32_t dense_layers = 0;  // layers before this one neither score nor select
  };

  explicit ScopedPolicy(const Options& options)
      : Policy("scoped", Phase::kPrefill), options_(options) {}

  SelectionRule rule(const KvBlockShape&) const override {
    return {.form = SelectionForm::kTileMasks};
  }
  int32_t prefill_scope_tokens() const override { return options_.scope_tokens; }
  int32_t prefill_tail_tokens() const override { return options_.tail_tokens; }
  PolicyMemory memory(const KvLayout& layout, int32_t, const PolicyLimits& limits) const override {
    Arena plan;
    cut(plan, layout, limits);
    return {.list_bytes = plan.used_bytes()};
  }
  void initialize(Device& device, const KvLayout& layout, int32_t,
                  const PolicyLimits& limits) override {
    memory_ = device.allocate(memory(layout, 0, limits).list_bytes, MemoryKind::kDevice);
    Arena arena(memory_.data(), memory_.size_bytes());
    lists_ = cut(arena, layout, limits);
    std::memset(lists_.key_hashes.bytes(), 0, lists_.key_hashes.num_bytes());
  }

  TileScorer* tile_scorer() override { return this; }
  int32_t window_rows(const SelectInput& input) const override {
    return input.layer.value < options_.dense_layers ? 0 : options_.window_rows;
  }
  void score(Stream& stream, const SelectInput&, const TileRows&, const KeyRun& run) override {
    const HashKeys work{.kv = run.kv,
                        .kv_begin = run.kv_begin.data<int32_t>(),
                        .kv_end = run.kv_end.data<int32_t>(),
                        .block_table = run.block_table.data<int32_t>(),
                        .hashes = lists_.key_hashes};
    as_cpu(stream).submit("scoped_score", [work](ThreadTeam&) { work.run(); });
  }
  void choose(Stream& stream, const SelectInput& input, const TileRows& window) override {
    const WriteTiles work = write_tiles(input, window);
    as_cpu(stream).submit("scoped_choose", [work](ThreadTeam&) { work.run(); });
    // The next window must see every key again.
    stream.fill(lists_.key_hashes.bytes(), lists_.key_hashes.num_bytes(), 0);
  }
  Selection select(Stream& stream, const SelectInput& input) override {
    if (input.layer.value < options_.dense_layers) return {};
    if (options_.window_rows == 0) {
      const WriteTiles work = write_tiles(input, {0, static_cast<int32_t>(input.span.num_rows)});
      as_cpu(stream).submit("scoped_select", [work](ThreadTeam&) { work.run(); });
    }
    return MaskedTiles{.mask = {.bits = lists_.bits, .first_q_tile = 0}, .columns = {}};
  }

 private:
  static constexpr int32_t kTile = kMaskTileTokens;

  struct Lists {
    TensorView bits;        // of all query tiles of a sequence
    TensorView key_hashes;  // i64 [kv_heads, tiles]
  };

  static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
  }

  // Hashes the keys of a run, tile by tile, on the stream's worker.
  struct HashKeys {
    KvBlocksView kv;
    const int32_t* kv_begin;
    const int32_t* kv_end;
    const int32_t* block_table;
    TensorView hashes;

    void run() const {
      SLUICE_CHECK(*kv_begin % kTile == 0, "a run begins at {}", *kv_begin);
      const KvBlockShape& shape = kv.shape;
      for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
        for (int32_t pos = *kv_begin; pos < *kv_end; ++pos) {
          const int32_t offset = pos - *kv_begin;
          const auto* key = kv.keys<const uint16_t>(block_table[offset / shape.block_tokens], head,
                                                    offset % shape.block_tokens);
          int64_t& hash = hashes.data<int64_t>()[head * hashes.dim(1) + pos / kTile];
          uint64_t mixed = std::bit_cast<uint64_t>(hash);
          for (int32_t d = 0; d < shape.head_dim; ++d) mixed = mix(mixed, key[d]);
          hash = std::bit_cast<int64_t>(mixed);
        }
      }
    }
  };

  // Writes the bits of a window's query tiles, on the stream's worker.
  struct WriteTiles {
    const int32_t* first_row;
    const uint16_t* q;
    int64_t q_width;
    LayerId layer;
    PrefillSpan span;
    TileRows window;
    TensorView bits;
    TensorView key_hashes;
    int32_t looks_at;
    int32_t tail_tokens;

    void run() const {
      SLUICE_CHECK(span.first_pos % kTile == 0, "a pass begins at {}", span.first_pos);
      const auto begin = static_cast<int32_t>(span.first_pos) + window.first;
      for (int32_t first = begin; first < begin + window.count; first += kTile) {
        const uint64_t hash = hash_of_scope(first);
        for (int64_t head = 0; head < bits.dim(1); ++head) write_tile(hash, first / kTile, head);
      }
    }

    uint64_t hash_of_scope(int32_t position) const {
      const int32_t scope = position / looks_at * looks_at;
      uint64_t hash = mix(static_cast<uint64_t>(layer.value), static_cast<uint64_t>(scope));
      for (int64_t pos = scope; pos < scope + looks_at; ++pos) {
        if (pos < span.first_pos || pos >= span.end_pos()) continue;
        const uint16_t* row = q + (*first_row + pos - span.first_pos) * q_width;
        for (int64_t i = 0; i < q_width; ++i) hash = mix(hash, row[i]);
      }
      return hash;
    }

    // The first tile, the diagonal, and one in three of the others.
    void write_tile(uint64_t hash, int32_t tile, int64_t head) const {
      const int64_t num_words = bits.dim(3);
      int32_t* words = bits.data<int32_t>() + (head * bits.dim(2) + tile) * num_words;
      const bool is_tail = int64_t{tile + 1} * kTile > span.prompt_end - tail_tokens;
      for (int32_t w = 0; w < num_words; ++w) {
        uint32_t word = 0;
        for (int32_t b = 0; b < 32 && 32 * w + b <= tile; ++b) {
          const int32_t kv_tile = 32 * w + b;
          const int64_t keys = key_hashes.data<int64_t>()[head * key_hashes.dim(1) + kv_tile];
          const uint64_t draw = mix(mix(hash, static_cast<uint64_t>(head * 4096 + tile)),
                                    std::bit_cast<uint64_t>(keys) + static_cast<uint64_t>(kv_tile));
          const bool is_forced = kv_tile == 0 || kv_tile == tile || (tail_tokens > 0 && is_tail);
          word |= static_cast<uint32_t>(is_forced || draw % 3 == 0) << b;
        }
        words[w] = std::bit_cast<int32_t>(word);
      }
    }
  };

  WriteTiles write_tiles(const SelectInput& input, const TileRows& window) const {
    return {.first_row = input.batch.row_begin.data<int32_t>(),
            .q = reinterpret_cast<const uint16_t*>(input.q.bytes()),
            .q_width = input.q.dim(1) * input.q.dim(2),
            .layer = input.layer,
            .span = input.span,
            .window = window,
            .bits = lists_.bits,
            .key_hashes = lists_.key_hashes,
            .looks_at = options_.looks_at,
            .tail_tokens = options_.tail_tokens};
  }

  static Lists cut(Arena& arena, const KvLayout& layout, const PolicyLimits& limits) {
    const int64_t tiles = (limits.max_tokens + kTile - 1) / kTile;
    const int64_t heads = layout.block.num_kv_heads;
    return {.bits = arena.tensor(DType::kI32, {1, heads, tiles, (tiles + 31) / 32}),
            .key_hashes = arena.tensor(DType::kI64, {heads, tiles})};
  }

  Options options_;
  Buffer memory_;
  Lists lists_;
};

// The pair "scoped+full".
inline std::unique_ptr<PolicyPair> make_scoped(const ScopedPolicy::Options& options) {
  return std::make_unique<PolicyPair>(
      "scoped+full", std::make_unique<ScopedPolicy>(options),
      std::make_unique<FullPolicy>(Phase::kDecode, SparseOptions{}));
}

}  // namespace sluice::testing
