// Rotary position embedding, fused with the q/k norm before it and the KV write after it.
//
// Used by model/decoder: `rope_angles` once per pass, `rope_and_write_kv` once per layer.
// Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/kv_blocks.h"

namespace sluice {

// Which position is rotated where keys repeat their positions every chunk_tokens (dual chunk
// attention). Of a row at position p with r = p % chunk_tokens:
//   kPlain       p
//   kKeys        r: keys, and queries of keys in their own chunk (kOwn)
//   kBefore      min(r + chunk_tokens, chunk_size): queries of keys in the chunk before
//   kFar         min(2 * chunk_tokens - 1, chunk_size): queries of all keys before that
enum class RopeZone : uint8_t { kPlain, kKeys, kOwn, kBefore, kFar };

struct RopeChunks {
  RopeZone zone = RopeZone::kPlain;
  int32_t chunk_tokens = 0;
  int32_t chunk_size = 0;
  // Not 0: cos and sin of a row at position p are multiplied by f^2, where f is 1 + 0.1 ln((p + 1)
  // / factor_from), at least 1. On queries alone, so that keys do not depend on a prompt's length.
  int32_t factor_from = 0;
};

struct RopeAnglesArgs {
  TensorView positions;           // i32 [m], absolute
  TensorView inv_freq;            // f32 [head_dim / 2]
  float attention_factor = 1.0f;  // YaRN's scale of cos and sin
  RopeChunks chunks;
  TensorView cos_sin;  // f32 [m, 2, head_dim / 2]: cosines, then sines
};

// cos_sin[i] = attention_factor * {cos, sin}(float(positions[i]) * inv_freq), of the position that
// `chunks` makes of it. A pair of channels with frequency 0 does not turn: {1, 0}, without the
// factor. Shared by all layers of the pass.
// Shapes: positions [m], inv_freq [head_dim / 2], cos_sin [m, 2, head_dim / 2].
// Types: the angle is a product in f32, as in transformers; its sine and cosine are those of that
// f32 number, however large the position is.
// Aliasing: `cos_sin` overlaps nothing.
// Order: enqueue only.
// Errors: those of every op (ops/ops.h).
// Source: Su et al. 2021, arXiv 2104.09864; chunks: An et al. 2024, arXiv 2402.17463; the factor:
// Peng et al. 2023, arXiv 2309.00071 (YaRN).
void rope_angles(Stream& stream, const RopeAnglesArgs& args);

struct RopeAndWriteKvArgs {
  TensorView qkv;     // bf16 [m, (num_q_heads + 2 * num_kv_heads) * head_dim]: q, then k, then v
  TensorView q_norm;  // bf16 [head_dim] or absent: RMSNorm of each query head before rope
  TensorView k_norm;  // bf16 [head_dim], present exactly when q_norm is
  float norm_eps = 1e-6f;
  float norm_offset = 0.0f;   // added to both norms' weights, as in rms_norm
  int32_t norm_channels = 0;  // of the norm's mean; 0: head_dim. Fewer where heads end in zeros
  TensorView cos_sin;         // f32 [m, 2, head_dim / 2]
  TensorView q_out;           // bf16 [m, num_q_heads, head_dim]
  KvBlocksView kv;            // where k and v go
  TensorView kv_rows;  // i32 [m]: block index in `kv` * block_tokens + offset in the block, or -1:
                       // k and v of the row are not written (a padding row of a graph's shape)
};

// q_out = rope(norm(q)); the block entry of each row gets rope(norm(k)) and v.
// Rope pairs channel i with i + head_dim / 2 (the "neox" or half-rotation convention of all three
// model families). The norm's mean is over `norm_channels`: the other channels of q and k must be
// zeros.
// Shapes: as at the members; num_q_heads is a multiple of num_kv_heads, head_dim is even (on CUDA a
// multiple of 16).
// Types: bf16 in and out; norm and rotation in f32, rounded once. v is copied.
// Aliasing: none of the outputs overlaps an input.
// Order: enqueue only. Two rows of a call never have the same kv_rows entry, -1 excepted.
// Errors: an entry of kv_rows outside the view's blocks is a failed check on the CPU and an
// asynchronous error on CUDA.
// Source: Su et al. 2021, arXiv 2104.09864, equation 34.
void rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args);

}  // namespace sluice
