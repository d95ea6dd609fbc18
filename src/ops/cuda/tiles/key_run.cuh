// Where the keys of a run lie. Used by the ops of tiles and columns. Thread rule: device code.
#pragma once

#include <cstdint>

namespace sluice::cuda {

// The key of token `position` of a run that begins at kv_begin; `call` names the
// blocks of the run.
template <typename Call>
__device__ inline const uint16_t* key_of_run(const Call& call, int32_t kv_begin, int32_t kv_head,
                                             int32_t position) {
  const int64_t block = call.block_table[(position - kv_begin) / call.block_tokens];
  const auto* from = reinterpret_cast<const uint16_t*>(call.kv_base + block * call.kv_stride_bytes);
  return from + kv_head * call.head_elements +
         static_cast<int64_t>(position % call.block_tokens) * call.head_dim;
}

}  // namespace sluice::cuda
