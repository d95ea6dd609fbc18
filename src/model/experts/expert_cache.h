// ExpertCache: experts that tokens chose recently, kept in device memory.
//
// Part of HostExperts, for decode and other passes of few rows. It is the cache of hot pages
// (ops/pages/hot_pages.h) with an expert as a page and a layer as a set: look-up, eviction of the
// least recently used, fetch and counts are work on compute, the same for any choice, so that a
// graph can replay it and nothing waits for the host. Which experts are in the cache changes no
// bit: expert_mlp reads the same weights at another place. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.h"
#include "device/device.h"
#include "model/experts/expert_layer.h"
#include "ops/pages/hot_pages.h"

namespace sluice {

// Experts that rows have chosen, of all layers, since construction.
struct ExpertCounts {
  int64_t num_hits = 0;  // found, or chosen by another row of the same step
  int64_t num_misses = 0;
  int64_t num_bytes = 0;  // fetched from the host
};

class ExpertCache {
 public:
  // Takes the device memory and fills its tables. REQUIRES: the weights of `layers`, in pinned
  // memory, outlive the cache and do not change; `compute` reads the places; num_places from
  // fewest_places() to the experts of a layer.
  ExpertCache(Device& device, Stream& compute, std::vector<ExpertLayer> layers, int32_t num_places);

  // Memory of a cache with `num_places` places in each layer; 0 without places.
  static size_t device_bytes(std::span<const ExpertLayer> layers, int32_t num_places);
  static size_t pinned_bytes(std::span<const ExpertLayer> layers, int32_t num_places);
  // The most places, at most one for each expert, for which device_bytes is within `bytes`; 0 if
  // that is less than fewest_places().
  static int32_t places_in(size_t bytes, std::span<const ExpertLayer> layers);
  // The experts of one row.
  static int32_t fewest_places(std::span<const ExpertLayer> layers);
  // The most rows of a step whose experts have places, whatever they choose.
  static int64_t rows_in(int32_t num_places, std::span<const ExpertLayer> layers);

  int32_t num_places() const { return num_places_; }

  // Makes compute find or fetch the chosen experts of layer `index` of `layers`. The result is
  // valid for work on compute until the next call.
  // REQUIRES: `experts` has at most rows_in(num_places()) rows.
  ExpertSource find(int32_t index, const TensorView& experts);

  // Enqueues on compute a copy of the counts to the host.
  void fetch_counts();
  // Those of the last copy. REQUIRES: the host waited for compute since then.
  ExpertCounts counts() const;

 private:
  // The tensors of all layers.
  struct Memory {
    HotPageSets sets;                 // a set for each layer
    TensorView counts;                // i64 [num_layers, kNumHotCounts + 1]: the last are bytes
    MissingPages missing;             // of one layer
    TensorView places;                // i32 [max_rows * most chosen], of one layer
    TensorView page_count;            // i32 [most chosen + 1, max_rows]: row k is all k
    TensorView block_ids;             // i32 [max_rows, most experts]: the experts' own numbers
    TensorView kv_end;                // i32 [max_rows]: the most experts of a layer
    std::vector<TensorView> gate_up;  // u8, of each layer
    std::vector<TensorView> down;
  };
  static Memory cut(Arena& arena, std::span<const ExpertLayer> layers, int32_t num_places);
  void fill_tables();
  PackedExperts places_of(const PackedExperts& experts, const TensorView& memory) const;

  Stream& compute_;
  const std::vector<ExpertLayer> layers_;
  const int32_t num_places_;
  Buffer buffer_;
  Buffer fetched_counts_;  // pinned copy
  Memory memory_;
};

}  // namespace sluice
