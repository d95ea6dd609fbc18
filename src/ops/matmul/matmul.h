// Matrix product with a weight that was packed once at load time.
//
// Used by model/decoder for every projection and for the logits. On the CPU device a row of the
// result depends on that row of the input alone, never on the number of rows in the call;
// offloading, batching and chunking change no bit because of it. Thread rule: enqueue only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/tensor_view.h"
#include "device/device.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {

// Reads a matrix from a checkpoint's file. The file is not mapped: if another program truncated it,
// reading the mapping would end the process with SIGBUS.
class WeightReader {
 public:
  virtual ~WeightReader() = default;
  // Reads bytes [offset, offset + dst.size()) of the matrix. Several threads call it at once, in
  // any order. It may not throw: a reader keeps its failure until the stream is waited for.
  virtual void read(size_t offset, std::span<std::byte> dst) const noexcept = 0;
};

// The values of GGUF's blocks (WeightFormat), in HOST memory.
struct GgufValues {
  TensorView factors;     // u8, the bits of i8
  TensorView minima;      // u8
  TensorView scales;      // f16
  TensorView min_scales;  // f16
};

struct PackWeightArgs {
  TensorView src;         // [n, num_cols] in HOST memory; no data with `reader`
  PackedWeight dst;       // rows [row_begin, row_begin + n) of it are written
  int64_t row_begin = 0;  // any, so that q, k and v of any height can be packed side by side
  const WeightReader* reader = nullptr;  // reads the bytes of `src` instead of memory
  TensorView scales = {};                // f32, in HOST memory, for a format with scales
  int64_t scale_rows = 1;  // rows of `src` that share a row of `scales`; the last may have fewer
  TensorView zeros = {};   // u8, in HOST memory, for integers
  TensorView order = {};   // i32, in HOST memory, for a format with orders: the column of x of each
                           // column of `src`, a permutation
  int32_t order_index = 0;  // of `order` among those of `dst`
  GgufValues values = {};   // for a format of GGUF's blocks
};

// Converts rows of a checkpoint's matrix to the format of `dst` and lays them out for `matmul`.
// Other rows of `dst` keep what they hold; the padding that a backend's layout has after the last
// row is written with that row.
// Shapes: src [n, dst.num_cols]; row_begin + n <= dst.num_rows; scales [ceil(n / scale_rows),
// scales_per_row] for a format with scales, zeros likewise for integers, order [dst.num_cols] for a
// format with orders, whose row_begin is a multiple of kOrderRows; else absent. Of kE4m3Blocks
// scale_rows is 128, and row_begin a multiple of it. Of GGUF's blocks, whose columns are a multiple
// of block_cols: values.factors [n, num_cols / group_cols], values.scales [n, num_cols /
// block_cols], and with minima the two others likewise; else absent.
// Types: bf16, f16 or f32 to bf16, rounded to nearest; u8 to e4m3, as codes, and to integers and
// codes of GGUF, one a byte, of which those of 4 bits are below 16.
// Aliasing: none; `src` is host memory and `dst` device memory.
// Order: the host memory of `src`, or `reader`, and of `scales`, `zeros` and `order` must live
// until the stream has passed this op.
// Errors: those of every op (ops/ops.h); a reader keeps its own.
void pack_weight(Stream& stream, const PackWeightArgs& args);

struct MatmulArgs {
  TensorView x;         // bf16 [m, k]
  PackedWeight weight;  // [n, k]
  TensorView bias;      // bf16 [n] or absent
  TensorView out;       // bf16 or f32 [m, n]
};

// out = x * weight^T (+ bias).
// Shapes: x [m, k], weight [n, k], bias [n], out [m, n].
// Types: bf16 in, bf16 or f32 out; summed in f32 and rounded once. The weight has its own format:
// with scales, products of x and e4m3, or integers less their zero points, are summed over up to
// 128 columns of a group, and the sum times the scale is added to those of the columns before. On
// the CPU e4m3's NaN is NaN. On CUDA it is a number, since loading refuses it, and with e4m3 more
// than 16 rows of x are rounded to e4m3 or the weight to bf16 (docs/adr/0033).
// Aliasing: `out` overlaps nothing.
// Order: enqueue only. A row's bits depend on that row alone on the CPU; on CUDA they may depend on
// m.
// Errors: on CUDA products of many rows need cuBLASLt: an asynchronous kUnsupported where the
// library is not there, kDevice where it has no algorithm.
void matmul(Stream& stream, const MatmulArgs& args);

struct EmbeddingArgs {
  TensorView token_ids;  // i32 [m], each in [0, table.num_rows)
  PackedWeight table;    // [vocab, hidden]
  TensorView out;        // bf16 [m, hidden]
};

// out[i] = table[token_ids[i]].
// Shapes: token_ids [m], table [vocab, hidden], out [m, hidden].
// Types: i32 ids, bf16 rows; values are copied.
// Aliasing: `out` overlaps nothing.
// Order: enqueue only; ids are read when the stream reaches the op.
// Errors: an id outside the table is an asynchronous
// error that names its place.
void embedding(Stream& stream, const EmbeddingArgs& args);

}  // namespace sluice
