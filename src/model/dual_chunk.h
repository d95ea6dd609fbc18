// DualChunk: dual chunk attention, with which a model reads more tokens than it was trained with.
//
// Keys are rotated by their position modulo chunk_tokens, so every key is stored once. A query is
// rotated for each of three zones of keys, so that the distance to a key is exact inside a chunk
// and for nearby tokens of the chunk before, and never exceeds what the model has seen. Made by
// model_config; read by the decoder, the plan and the store's fingerprint. Thread rule: values.
// Source: An et al. 2024, arXiv 2402.17463; Yang et al. 2025, arXiv 2501.15383 (Qwen2.5-1M).
#pragma once

#include <cstdint>

#include "io/json.h"
#include "ops/rows/rope.h"

namespace sluice {

struct DualChunk {
  int64_t chunk_size = 0;          // the largest distance that is used
  int64_t local_size = 0;          // tokens before a chunk whose distances stay exact
  int64_t original_positions = 0;  // longer texts have sharper scores: see length_factor

  bool present() const { return chunk_size > 0; }
  bool operator==(const DualChunk&) const = default;

  // Tokens of a chunk: keys of chunk m lie at [m, m + 1) * chunk_tokens.
  int64_t chunk_tokens() const { return chunk_size - local_size; }
  // How a pass rotates the queries of a zone, or keys, which have no length factor.
  RopeChunks chunks(RopeZone zone) const {
    return {.zone = zone,
            .chunk_tokens = static_cast<int32_t>(chunk_tokens()),
            .chunk_size = static_cast<int32_t>(chunk_size),
            .factor_from = zone == RopeZone::kKeys ? 0 : static_cast<int32_t>(original_positions)};
  }
};

// Absent without the key. Without local_size 1,024, as in vLLM. A length below a chunk is an error:
// the factor of a row would depend on the rows beside it, since passes in the first chunk have
// none. Errors: kModel for sizes that contradict each other.
DualChunk read_dual_chunk(const JsonObject& config);

}  // namespace sluice
