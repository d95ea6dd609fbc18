// OpNeeds: what a model and its KV cache demand of the memory that ops keep for a stream.
//
// Made by the memory plan; read by the backends. Thread rule: plain values.
#pragma once

#include <cstdint>

#include "ops/kv_blocks.h"

namespace sluice {

struct OpNeeds {
  bool has_coded_weights = false;  // in e4m3, integers or blocks of GGUF
  bool has_coded_experts = false;  // likewise those of a mixture
  KvBlockShape kv;                 // of the KV that attention reads
  int64_t max_run_tokens = 0;      // that a call reads of one sequence, whole blocks
  bool scores_keys = false;        // by the ops of tiles
};

}  // namespace sluice
