// Shape contracts of the ops of the gated delta rule.
#include "ops/delta/delta.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

// Binds "num_channels", "num_v_heads" and "num_taps". Sequences are checked where they are read.
void require_states(ShapeContract& shapes, const DeltaRows& rows, const DeltaStates& states) {
  const DeltaShape& shape = states.shape;
  shapes.require(shape.num_k_heads > 0 && shape.num_v_heads % shape.num_k_heads == 0,
                 "num_v_heads must be a multiple of num_k_heads");
  shapes.require(shape.k_dim > 0 && shape.k_dim <= kMaxDeltaKDim && shape.v_dim > 0,
                 "k_dim must be 1 to kMaxDeltaKDim, v_dim above 0");
  shapes.require(shape.num_taps > 1 && shape.num_taps <= kMaxConvTaps,
                 "num_taps must be 2 to kMaxConvTaps");
  shapes.require(states.base != nullptr && states.num_slots > 0, "states must be present");
  shapes.require(states.slot_bytes >= shape.matrix_bytes() + shape.window_bytes(),
                 "slot_bytes must hold a state");
  shapes.require(states.slot_bytes % sizeof(float) == 0, "slot_bytes must be a multiple of 4");
  shapes.bind("num_channels", shape.num_channels());
  shapes.bind("num_v_heads", shape.num_v_heads);
  shapes.bind("num_taps", shape.num_taps);
  shapes.expect("rows.first_pos", rows.first_pos, DType::kI32, {"num_seqs"});
  shapes.expect("rows.read_slots", rows.read_slots, DType::kI32, {"num_seqs"});
  shapes.expect("rows.write_slots", rows.write_slots, DType::kI32, {"num_seqs"});
  shapes.require(rows.max_rows > 0 || shapes["num_seqs"] == 0, "rows.max_rows must be above 0");
  shapes.bind("num_seqs + 1", shapes["num_seqs"] + 1);
  shapes.expect("rows.row_begin", rows.row_begin, DType::kI32, {"num_seqs + 1"});
}

void require_conv(ShapeContract& shapes, const ShortConvArgs& args) {
  require_states(shapes, args.rows, args.states);
  shapes.expect("x", args.x, DType::kBF16, {"m", "width"});
  shapes.require(shapes["width"] >= shapes["num_channels"], "width must be at least num_channels");
  shapes.expect("taps", args.taps, DType::kF32, {"num_taps", "num_channels"});
  shapes.expect("out", args.out, DType::kF32, {"m", "num_channels"});
}

void require_rule(ShapeContract& shapes, const DeltaRuleArgs& args) {
  require_states(shapes, args.rows, args.states);
  shapes.bind("2 * num_v_heads", 2 * shapes["num_v_heads"]);
  shapes.bind("v_width", args.states.shape.v_width());
  shapes.expect("mixed", args.mixed, DType::kF32, {"m", "num_channels"});
  shapes.expect("gates", args.gates, DType::kF32, {"m", "2 * num_v_heads"});
  shapes.expect("a_log", args.a_log, DType::kF32, {"num_v_heads"});
  shapes.expect("dt_bias", args.dt_bias, DType::kF32, {"num_v_heads"});
  shapes.expect("out", args.out, DType::kF32, {"m", "v_width"});
}

// The gate is a part of a wider tensor, the one that a projection wrote: no copy is made of it.
void require_norm(ShapeContract& shapes, const GatedNormArgs& args) {
  shapes.expect("x", args.x, DType::kF32, {"m", "heads * dim"});
  shapes.expect("gate", args.gate, DType::kBF16, {"m", "width"});
  shapes.expect("weight", args.weight, DType::kF32, {"dim"});
  shapes.expect("out", args.out, DType::kBF16, {"m", "heads * dim"});
  shapes.require(shapes["dim"] > 0 && shapes["heads * dim"] % shapes["dim"] == 0,
                 "x must have whole heads of dim");
  shapes.require(
      args.gate_column >= 0 && args.gate_column + shapes["heads * dim"] <= shapes["width"],
      "gate must have heads * dim columns from gate_column on");
}

}  // namespace

void short_conv(Stream& stream, const ShortConvArgs& args) {
  ShapeContract shapes("short_conv");
  require_conv(shapes, args);
  ops_of(stream.device()).short_conv(stream, args);
}

void delta_rule(Stream& stream, const DeltaRuleArgs& args) {
  ShapeContract shapes("delta_rule");
  require_rule(shapes, args);
  ops_of(stream.device()).delta_rule(stream, args);
}

void gated_norm(Stream& stream, const GatedNormArgs& args) {
  ShapeContract shapes("gated_norm");
  require_norm(shapes, args);
  ops_of(stream.device()).gated_norm(stream, args);
}

void delta_mixer(Stream& stream, const DeltaMixerArgs& args) {
  ShapeContract of_conv("delta_mixer, conv"), of_rule("delta_mixer, rule"),
      of_norm("delta_mixer, norm");
  require_conv(of_conv, args.conv);
  require_rule(of_rule, args.rule);
  require_norm(of_norm, args.norm);
  of_rule.require(args.rule.mixed.bytes() == args.conv.out.bytes(), "mixed must be conv.out");
  of_norm.require(args.norm.x.bytes() == args.rule.out.bytes(), "x must be rule.out");
  ops_of(stream.device()).delta_mixer(stream, args);
}

void sigmoid_gate(Stream& stream, const SigmoidGateArgs& args) {
  ShapeContract shapes("sigmoid_gate");
  shapes.expect("x", args.x, DType::kBF16, {"m", "width"});
  shapes.expect("gate", args.gate, DType::kBF16, {"m", "width"});
  ops_of(stream.device()).sigmoid_gate(stream, args);
}

}  // namespace sluice
