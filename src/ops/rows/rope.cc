// Shape contracts of rope_angles and rope_and_write_kv.
#include "ops/rows/rope.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {

void rope_angles(Stream& stream, const RopeAnglesArgs& args) {
  ShapeContract shapes("rope_angles");
  shapes.bind("2", 2);
  shapes.expect("positions", args.positions, DType::kI32, {"m"});
  shapes.expect("inv_freq", args.inv_freq, DType::kF32, {"head_dim / 2"});
  shapes.expect("cos_sin", args.cos_sin, DType::kF32, {"m", "2", "head_dim / 2"});
  shapes.require(
      args.chunks.zone == RopeZone::kPlain ||
          (args.chunks.chunk_tokens > 0 && args.chunks.chunk_size >= args.chunks.chunk_tokens),
      "chunks must have chunk_tokens, at most chunk_size");
  ops_of(stream.device()).rope_angles(stream, args);
}

void rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args) {
  ShapeContract shapes("rope_and_write_kv");
  const KvBlockShape& kv = args.kv.shape;
  shapes.expect("q_out", args.q_out, DType::kBF16, {"m", "num_q_heads", "head_dim"});
  shapes.require(shapes["head_dim"] % 2 == 0, "head_dim must be even");
  shapes.require(kv.head_dim == shapes["head_dim"], "kv.shape.head_dim must equal q_out's");
  shapes.require(kv.num_kv_heads > 0 && shapes["num_q_heads"] % kv.num_kv_heads == 0,
                 "num_q_heads must be a multiple of num_kv_heads");
  shapes.bind("(num_q_heads + 2 * num_kv_heads) * head_dim",
              (shapes["num_q_heads"] + 2 * kv.num_kv_heads) * kv.head_dim);
  shapes.bind("2", 2);
  shapes.bind("head_dim / 2", kv.head_dim / 2);
  shapes.expect("qkv", args.qkv, DType::kBF16,
                {"m", "(num_q_heads + 2 * num_kv_heads) * head_dim"});
  shapes.expect_or_absent("q_norm", args.q_norm, DType::kBF16, {"head_dim"});
  shapes.expect_or_absent("k_norm", args.k_norm, DType::kBF16, {"head_dim"});
  shapes.require(args.q_norm.present() == args.k_norm.present(),
                 "q_norm and k_norm must be both present or both absent");
  shapes.expect("cos_sin", args.cos_sin, DType::kF32, {"m", "2", "head_dim / 2"});
  shapes.expect("kv_rows", args.kv_rows, DType::kI32, {"m"});
  shapes.require(args.kv.base != nullptr, "kv must be present");
  shapes.require(args.norm_channels >= 0 && args.norm_channels <= kv.head_dim,
                 "norm_channels must be 0 to head_dim");
  // Backends divide by norm_channels and never see the 0 that means head_dim.
  RopeAndWriteKvArgs settled = args;
  if (settled.norm_channels == 0) settled.norm_channels = kv.head_dim;
  ops_of(stream.device()).rope_and_write_kv(stream, settled);
}

}  // namespace sluice
