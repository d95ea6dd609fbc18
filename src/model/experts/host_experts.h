// HostExperts: mixtures whose experts' weights are in pinned host memory.
//
// Made by engine/stations/rank beside the Weights, and given to the decoder. A pass of few rows
// takes each expert from the cache, in parts of as many rows as have places for all that they may
// choose; any other pass takes whole layers from the ring. Parts would change bits where a row's
// depend on the number of rows, so a pass of more than kIndependentExpertRows is not cut. Both give
// expert_mlp the bytes that the host has, so neither the sizes nor the choice changes a result.
// Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/wait_gate.h"
#include "model/experts/expert_cache.h"
#include "model/experts/expert_layer.h"
#include "model/experts/expert_ring.h"

namespace sluice {

struct HostExpertSizes {
  int32_t num_slots = 0;          // of the ring, each a layer; 0: experts are on the device
  int32_t num_places = 0;         // of the cache, in each layer; 0: there is none
  SkippedWait skipped_wait = {};  // none, but in the test that every wait is needed

  bool on_host() const { return num_slots > 0; }
};

class HostExperts {
 public:
  // Takes the device memory. REQUIRES: sizes.on_host(); the weights of `layers` are in pinned
  // memory and outlive this object, as `compute` does, on which everything that reads them runs.
  HostExperts(Device& device, Stream& compute, std::vector<ExpertLayer> layers,
              const HostExpertSizes& sizes);

  // The most rows of a pass that takes its experts from such a cache; 0 without places.
  static int64_t cached_rows(int32_t num_places, std::span<const ExpertLayer> layers);

  // Whether a pass of that many rows takes its experts from the cache. A graph can replay it then.
  bool uses_cache(int64_t num_rows) const { return num_rows <= cached_rows_; }

  // A pass of that many rows begins. REQUIRES: not while a pass is captured, unless uses_cache.
  void begin_pass(int64_t num_rows);
  // Rows of one call of `provide` in the pass, at most.
  int64_t rows_at_once() const;
  // Where expert_mlp finds the chosen experts (i32 [m, k], device memory) of a layer of the pass:
  // valid for work on compute until the next call. REQUIRES: layers come in order, each for any
  // number of ranges of rows.
  ExpertSource provide(LayerId layer, const TensorView& experts);
  // Experts that `provide` may name, for the sizes of scratch.
  int32_t num_sources(LayerId layer) const;
  // After the layer's last work in the pass; nothing for a layer without experts.
  void finish(LayerId layer);

  const ExpertRing& ring() const { return ring_; }
  // Null without places.
  const ExpertCache* cache() const { return cache_ ? &*cache_ : nullptr; }

 private:
  int32_t index_of(LayerId layer) const { return index_of_[static_cast<size_t>(layer.value)]; }

  std::vector<ExpertLayer> layers_;
  std::vector<int32_t> index_of_;  // of each layer of the model in layers_; -1: it has no experts
  ExpertRing ring_;
  std::optional<ExpertCache> cache_;
  int64_t cached_rows_ = 0;
  int64_t rows_with_places_ = 0;
  bool from_cache_ = false;  // the pass takes its experts from there
};

}  // namespace sluice
