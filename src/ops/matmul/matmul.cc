// Shape contracts of pack_weight, matmul and embedding, and the check of formats.
#include "ops/matmul/matmul.h"

#include <algorithm>

#include "core/error.h"
#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

// `rule` names the weight in the failure.
void require_weight(ShapeContract& shapes, const PackedWeight& weight, std::string_view rule) {
  shapes.require(weight.present() && weight.num_rows > 0 && weight.num_cols > 0, rule);
}

// Scales, and what integers have beside them.
void require_scales(ShapeContract& shapes, const PackWeightArgs& args) {
  const WeightFormat format = args.dst.format;
  shapes.require(args.scales.present() && args.scale_rows > 0,
                 "a format with scales must have scales and a positive scale_rows");
  shapes.require(format.group_rows == 1 || (args.scale_rows == format.group_rows &&
                                            args.row_begin % format.group_rows == 0),
                 "blocks of scales begin at multiples of their rows, and have no other rows");
  shapes.bind("scales", (args.src.dim(0) + args.scale_rows - 1) / args.scale_rows);
  shapes.bind("per_row", scales_per_row(format, args.dst.num_cols));
  shapes.expect("scales", args.scales, DType::kF32, {"scales", "per_row"});
  shapes.require(args.zeros.present() == stores_integers(format), "integers alone must have zeros");
  shapes.expect_or_absent("zeros", args.zeros, DType::kU8, {"scales", "per_row"});
  shapes.require(args.order.present() == (format.num_orders > 0),
                 "a format with orders alone must have an order");
  shapes.expect_or_absent("order", args.order, DType::kI32, {"num_cols"});
  shapes.require(args.order_index >= 0 && args.order_index < std::max(format.num_orders, 1),
                 "order_index must be one of dst.format.num_orders");
  shapes.require(format.num_orders == 0 || args.row_begin % kOrderRows == 0,
                 "with an order, row_begin must be a multiple of 16");
}

void require_gguf_values(ShapeContract& shapes, const PackWeightArgs& args) {
  const WeightFormat format = args.dst.format;
  const GgufValues& values = args.values;
  shapes.require(format.group_cols > 0 && format.block_cols % format.group_cols == 0 &&
                     args.dst.num_cols % format.block_cols == 0,
                 "blocks have whole groups, and rows whole blocks");
  shapes.require(values.factors.present() && values.scales.present(),
                 "blocks of GGUF must have factors and scales");
  shapes.require(values.minima.present() == format.has_minima &&
                     values.min_scales.present() == format.has_minima,
                 "a format with minima alone must have minima and their scales");
  shapes.bind("groups", args.dst.num_cols / format.group_cols);
  shapes.bind("blocks", args.dst.num_cols / format.block_cols);
  shapes.expect("values.factors", values.factors, DType::kU8, {"n", "groups"});
  shapes.expect("values.scales", values.scales, DType::kF16, {"n", "blocks"});
  shapes.expect_or_absent("values.minima", values.minima, DType::kU8, {"n", "groups"});
  shapes.expect_or_absent("values.min_scales", values.min_scales, DType::kF16, {"n", "blocks"});
}

}  // namespace

// The rows before take as many bytes as a weight of their own.
PackedWeight rows_of(Device& device, const PackedWeight& weight, int64_t row_begin,
                     int64_t num_rows) {
  expect_weight_format("rows_of", weight.format, WeightFormat::kBFloat16);
  SLUICE_CHECK(row_begin % kRowsOfPart == 0 && row_begin + num_rows <= weight.num_rows,
               "rows {} to {}", row_begin, row_begin + num_rows);
  PackedWeight rows = weight;
  if (row_begin > 0) rows.data += packed_weight_bytes(device, row_begin, weight.num_cols);
  rows.num_rows = num_rows;
  return rows;
}

size_t packed_weight_bytes(Device& device, int64_t num_rows, int64_t num_cols,
                           WeightFormat format) {
  ShapeContract shapes("packed_weight_bytes");
  shapes.require(num_rows > 0 && num_cols > 0, "num_rows and num_cols must be positive");
  return ops_of(device).packed_weight_bytes(num_rows, num_cols, format);
}

bool keeps_gguf(Device& device, WeightFormat format) { return ops_of(device).keeps_gguf(format); }

void expect_weight_format(std::string_view op, WeightFormat format, WeightFormat has_kernel) {
  if (format == has_kernel) return;
  fail(ErrorCode::kUnsupported, "{} has no kernel for weights in {} on this device; use {}", op,
       weight_format_name(format), weight_format_name(has_kernel));
}

void pack_weight(Stream& stream, const PackWeightArgs& args) {
  ShapeContract shapes("pack_weight");
  require_weight(shapes, args.dst, "dst must be present and not empty");
  shapes.bind("num_cols", args.dst.num_cols);
  const DType dtype = args.src.dtype();
  const bool has_codes = stores_codes(args.dst.format);
  if (has_codes) {
    shapes.require(dtype == DType::kU8, "src must be u8, codes of e4m3, integers or blocks");
    if (has_scales(args.dst.format)) require_scales(shapes, args);
  } else {
    shapes.require(dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32,
                   "src must be bf16, f16 or f32");
    shapes.require(!args.scales.present(), "scales must be absent for a format without");
  }
  shapes.require(args.src.present() != (args.reader != nullptr), "src must have data or a reader");
  shapes.expect_described("src", args.src, dtype, {"n", "num_cols"});
  if (stores_gguf(args.dst.format)) require_gguf_values(shapes, args);
  shapes.require(args.row_begin >= 0, "row_begin must not be negative");
  shapes.require(args.row_begin + shapes["n"] <= args.dst.num_rows,
                 "row_begin + n must be at most dst.num_rows");
  ops_of(stream.device()).pack_weight(stream, args);
}

void matmul(Stream& stream, const MatmulArgs& args) {
  ShapeContract shapes("matmul");
  require_weight(shapes, args.weight, "weight must be present and not empty");
  shapes.bind("n", args.weight.num_rows);
  shapes.bind("k", args.weight.num_cols);
  shapes.expect("x", args.x, DType::kBF16, {"m", "k"});
  shapes.expect_or_absent("bias", args.bias, DType::kBF16, {"n"});
  const DType dtype = args.out.dtype();
  shapes.require(dtype == DType::kBF16 || dtype == DType::kF32, "out must be bf16 or f32");
  shapes.expect("out", args.out, dtype, {"m", "n"});
  ops_of(stream.device()).matmul(stream, args);
}

void embedding(Stream& stream, const EmbeddingArgs& args) {
  ShapeContract shapes("embedding");
  require_weight(shapes, args.table, "table must be present and not empty");
  shapes.bind("hidden", args.table.num_cols);
  shapes.expect("token_ids", args.token_ids, DType::kI32, {"m"});
  shapes.expect("out", args.out, DType::kBF16, {"m", "hidden"});
  ops_of(stream.device()).embedding(stream, args);
}

}  // namespace sluice
