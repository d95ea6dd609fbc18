// Matrix product with a weight that was packed once at load time.
//
// Used by model/decoder for every projection and for the logits. The promise that makes offloading,
// batching and chunking invisible on the CPU device: a row of the result depends on that row of the
// input alone, never on how many other rows are in the call. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"

namespace sluice {

// A weight [num_rows, num_cols] (out features, in features) in the backend's own layout, in device
// memory. The embedding table is one too, so that tied embeddings are stored once.
struct PackedWeight {
  std::byte* data = nullptr;
  int64_t num_rows = 0;
  int64_t num_cols = 0;

  bool present() const { return data != nullptr; }
};

// Bytes that a packed weight takes on the device of `device`, padding included.
size_t packed_weight_bytes(Device& device, int64_t num_rows, int64_t num_cols);

struct PackWeightArgs {
  TensorView src;         // bf16, f16 or f32 [n, num_cols], in HOST memory (a mapped checkpoint)
  PackedWeight dst;       // rows [row_begin, row_begin + n) of it are written
  int64_t row_begin = 0;  // multiple of kPackRows, so that q, k and v can be packed side by side
};
inline constexpr int64_t kPackRows = 16;

// Converts rows of a checkpoint's matrix to bf16 and lays them out for `matmul`.
// Order: the host memory of `src` must stay mapped until the stream has passed this op.
void pack_weight(Stream& stream, const PackWeightArgs& args);

struct MatmulArgs {
  TensorView x;         // bf16 [m, k]
  PackedWeight weight;  // [n, k]
  TensorView bias;      // bf16 [n] or absent
  TensorView out;       // bf16 or f32 [m, n]
};

// out = x * weight^T (+ bias), accumulated in f32 and rounded once.
// Aliasing: `out` overlaps nothing.
void matmul(Stream& stream, const MatmulArgs& args);

struct EmbeddingArgs {
  TensorView token_ids;  // i32 [m], each in [0, table.num_rows)
  PackedWeight table;    // [vocab, hidden]
  TensorView out;        // bf16 [m, hidden]
};

// out[i] = table[token_ids[i]].
void embedding(Stream& stream, const EmbeddingArgs& args);

}  // namespace sluice
