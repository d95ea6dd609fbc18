// Rotary position embedding, fused with the q/k norm before it and the KV write after it.
//
// Used by model/decoder: `rope_angles` once per pass, `rope_and_write_kv` once per layer.
// Thread rule: enqueue only.
#pragma once

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/kv_blocks.h"

namespace sluice {

struct RopeAnglesArgs {
  TensorView positions;           // i32 [m], absolute
  TensorView inv_freq;            // f32 [head_dim / 2]
  float attention_factor = 1.0f;  // YaRN's scale of cos and sin
  TensorView cos_sin;             // f32 [m, 2, head_dim / 2]: cosines, then sines
};

// cos_sin[i] = attention_factor * {cos, sin}(float(positions[i]) * inv_freq), the product in f32 as
// transformers does it. Shared by all layers of the pass.
void rope_angles(Stream& stream, const RopeAnglesArgs& args);

struct RopeAndWriteKvArgs {
  TensorView qkv;     // bf16 [m, (num_q_heads + 2 * num_kv_heads) * head_dim]: q, then k, then v
  TensorView q_norm;  // bf16 [head_dim] or absent: RMSNorm of each query head before rope
  TensorView k_norm;  // bf16 [head_dim], present exactly when q_norm is
  float norm_eps = 1e-6f;
  TensorView cos_sin;   // f32 [m, 2, head_dim / 2]
  TensorView q_out;     // bf16 [m, num_q_heads, head_dim]
  KvBlocksView kv;      // where k and v go
  TensorView kv_slots;  // i32 [m]: block index in `kv` * block_tokens + offset in the block, or -1:
                        // the row's k and v are written nowhere (it only fills a shape up)
};

// q_out = rope(norm(q)); the block entry of each row gets rope(norm(k)) and v.
// Rope pairs channel i with i + head_dim / 2 (the "neox" or half-rotation convention of all three
// model families). Norm and rotation in f32, rounded to bf16 once.
// Aliasing: none of the outputs overlaps an input.
// Source: Su et al. 2021, arXiv 2104.09864, equation 34.
void rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args);

}  // namespace sluice
