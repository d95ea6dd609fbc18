// ScopedPolicy: a prefill policy for tests whose tiles depend on every query of a row's scope.
//
// Used by tests of the engine and of offload: where a pass breaks the promise of scopes
// (attention/policy.h), a query of the scope is missing or new, the hash and with it the tiles
// change. With more `looks_at` than `scope_tokens` the policy itself breaks the promise. CPU device
// only. Thread rule: as Policy.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>

#include "attention/policies/full.h"
#include "attention/policy_pair.h"
#include "core/error.h"
#include "device/cpu/cpu_stream.h"

namespace sluice::testing {

class ScopedPolicy final : public Policy {
 public:
  struct Options {
    int32_t scope_tokens = 128;
    int32_t looks_at = 128;  // rows whose queries the tiles of a row depend on
    int32_t tail_tokens = 0;
  };

  explicit ScopedPolicy(const Options& options)
      : Policy("scoped", Phase::kPrefill), options_(options) {}

  SelectionRule rule(const KvBlockShape&) const override {
    return {.form = SelectionForm::kTileMasks};
  }
  int32_t prefill_scope_tokens() const override { return options_.scope_tokens; }
  int32_t prefill_tail_tokens() const override { return options_.tail_tokens; }
  PolicyMemory memory(const KvLayout& layout, int32_t, const PolicyLimits& limits) const override {
    return {.list_bytes = bits_of(nullptr, layout, limits).num_bytes()};
  }
  void initialize(Device& device, const KvLayout& layout, int32_t,
                  const PolicyLimits& limits) override {
    memory_ = device.allocate(bits_of(nullptr, layout, limits).num_bytes(), MemoryKind::kDevice);
    bits_ = bits_of(memory_.data(), layout, limits);
  }

  Selection select(Stream& stream, const SelectInput& input) override {
    const Work work{.first_row = input.batch.row_begin.data<int32_t>(),
                    .first_pos = input.batch.first_pos.data<int32_t>(),
                    .kv_end = input.kv_end.data<int32_t>(),
                    .q = reinterpret_cast<const uint16_t*>(input.q.bytes()),
                    .q_width = input.q.dim(1) * input.q.dim(2),
                    .layer = input.layer,
                    .bits = bits_,
                    .looks_at = options_.looks_at};
    as_cpu(stream).submit("scoped_select", [work](ThreadTeam&) { work.run(); });
    return {.mask = {.bits = bits_, .first_q_tile = 0}};
  }

 private:
  // One selection, on the stream's worker.
  struct Work {
    const int32_t* first_row;
    const int32_t* first_pos;
    const int32_t* kv_end;
    const uint16_t* q;
    int64_t q_width;
    LayerId layer;
    TensorView bits;  // entries for all query tiles of a sequence
    int32_t looks_at;

    void run() const {
      SLUICE_CHECK(*first_pos % kMaskTileTokens == 0, "a pass begins at {}", *first_pos);
      for (int32_t tile = *first_pos / kMaskTileTokens; tile * kMaskTileTokens < *kv_end; ++tile) {
        const int32_t scope = tile * kMaskTileTokens / looks_at * looks_at;
        uint64_t hash = mix(static_cast<uint64_t>(layer.value), static_cast<uint64_t>(scope));
        for (int32_t pos = scope; pos < scope + looks_at; ++pos) {
          if (pos >= *first_pos && pos < *kv_end)
            hash = add_row(hash, *first_row + pos - *first_pos);
        }
        for (int64_t head = 0; head < bits.dim(1); ++head) write_tile(hash, tile, head);
      }
    }

    uint64_t add_row(uint64_t hash, int32_t row) const {
      for (int64_t i = 0; i < q_width; ++i) hash = mix(hash, q[row * q_width + i]);
      return hash;
    }

    // The first tile, the diagonal, and one in three of the others.
    void write_tile(uint64_t hash, int32_t tile, int64_t head) const {
      const int64_t num_words = bits.dim(3);
      int32_t* words = bits.data<int32_t>() + (head * bits.dim(2) + tile) * num_words;
      for (int64_t w = 0; w < num_words; ++w) {
        uint32_t word = 0;
        for (int64_t b = 0; b < 32 && 32 * w + b <= tile; ++b) {
          const auto kv_tile = static_cast<uint64_t>(32 * w + b);
          const uint64_t draw = mix(mix(hash, static_cast<uint64_t>(head * 4096 + tile)), kv_tile);
          const bool is_set =
              kv_tile == 0 || static_cast<int32_t>(kv_tile) == tile || draw % 3 == 0;
          word |= static_cast<uint32_t>(is_set) << b;
        }
        words[w] = std::bit_cast<int32_t>(word);
      }
    }

    static uint64_t mix(uint64_t hash, uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
      return hash ^ (hash >> 29);
    }
  };

  static TensorView bits_of(std::byte* data, const KvLayout& layout, const PolicyLimits& limits) {
    const int64_t tiles = (limits.max_tokens + kMaskTileTokens - 1) / kMaskTileTokens;
    return TensorView(data, DType::kI32, {1, layout.block.num_kv_heads, tiles, (tiles + 31) / 32});
  }

  Options options_;
  Buffer memory_;
  TensorView bits_;
};

// The pair "scoped+full".
inline std::unique_ptr<PolicyPair> make_scoped(const ScopedPolicy::Options& options) {
  return std::make_unique<PolicyPair>(
      "scoped+full", std::make_unique<ScopedPolicy>(options),
      std::make_unique<FullPolicy>(Phase::kDecode, SparseOptions{}));
}

}  // namespace sluice::testing
