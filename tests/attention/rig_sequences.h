// The sequences of a PolicyRig: spans of rows, what their queries, keys and values are, and zones
// of keys.
//
// Used by policy_rig.h. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace sluice::testing {

// Rows [first_pos, first_pos + num_rows) of a sequence in a pass.
struct Span {
  int32_t seq = 0;
  int32_t first_pos = 0;
  int32_t num_rows = 1;
  int32_t prompt_end = 0;  // prefill; 0: the span ends the prompt
  int32_t end_pos() const { return first_pos + num_rows; }
};

// The list that a row of one sequence follows for a KV head.
using PageIds = std::vector<int32_t>;

// Zones of keys: rows score keys of the chunk before theirs with twice their query, and keys before
// that with four times it. The same scores without zones: for rows of chunk `own_chunk`, with keys
// that are twice and four times as large.
struct RigZones {
  int32_t chunk_tokens = 0;  // 0: neither
  int32_t own_chunk = -1;    // of the rows, where the keys are larger; -1: queries differ

  bool are_queries() const { return chunk_tokens > 0 && own_chunk < 0; }
  float key_factor(int32_t pos) const {
    if (chunk_tokens == 0 || own_chunk < 0) return 1.0f;
    const int32_t apart = own_chunk - pos / chunk_tokens;
    return apart <= 0 ? 1.0f : apart == 1 ? 2.0f : 4.0f;
  }
};

// A profile with every kind of head, for the layers and heads of the rig.
inline std::string mixed_profile() {
  return (source_dir() / "tests/fuzz/corpus/head_profile/mixed").string();
}

enum What : int32_t { kQuery, kKey, kValue };

// A query, key or value of a layer; the same in every rig.
inline float value_at(What what, int32_t layer, int32_t seq, int32_t pos, int32_t head, int32_t d) {
  uint64_t x = ((((static_cast<uint64_t>(what) * 8 + static_cast<uint64_t>(layer)) * 8 +
                  static_cast<uint64_t>(seq)) *
                     4096 +
                 static_cast<uint64_t>(pos)) *
                    16 +
                static_cast<uint64_t>(head)) *
                   64 +
               static_cast<uint64_t>(d);
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(static_cast<int32_t>(x >> 40) - (1 << 23)) * 0x1p-22f;
}

}  // namespace sluice::testing
