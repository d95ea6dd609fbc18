// The key of dual chunk attention in config.json.
//
// Used by tests of tests/engine, with copy_model. Thread rule: any thread.
#pragma once

#include <cstdint>

#include "io/json_type.h"
#include "model/copied_model.h"

namespace sluice::testing {

// Sizes of `dual_chunk_attention_config`, in tokens. A chunk of keys has `chunk` - `local` of them.
struct ChunkSizes {
  int64_t chunk;
  int64_t local;
  int64_t original;
};

inline nlohmann::json dual_chunk_json(const ChunkSizes& sizes) {
  return {{"chunk_size", sizes.chunk},
          {"local_size", sizes.local},
          {"original_max_position_embeddings", sizes.original}};
}

}  // namespace sluice::testing
