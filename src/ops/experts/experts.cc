// Shape contracts of route_experts and expert_mlp, and the layout of their scratch.
#include "ops/experts/experts.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

// All of them exist and are [num_rows, num_cols].
void require_experts(ShapeContract& shapes, const PackedExperts& weights, int64_t num_rows,
                     int64_t num_cols, std::string_view rule) {
  shapes.require(weights.first.present() && weights.num_experts > 0 &&
                     weights.first.num_rows == num_rows && weights.first.num_cols == num_cols,
                 rule);
}

void require_scratch(ShapeContract& shapes, const ExpertScratch& scratch) {
  shapes.bind("pairs", shapes["m"] * shapes["k"]);
  shapes.bind("begins", shapes["num_experts"] + 1);
  shapes.bind("2 * intermediate", 2 * shapes["intermediate"]);
  shapes.expect("scratch.places", scratch.places, DType::kI32, {"pairs"});
  shapes.expect("scratch.pairs", scratch.pairs, DType::kI32, {"pairs"});
  shapes.expect("scratch.begins", scratch.begins, DType::kI32, {"begins"});
  shapes.expect("scratch.jobs", scratch.jobs, DType::kI32, {"begins"});
  shapes.expect("scratch.rows", scratch.rows, DType::kBF16, {"pairs", "hidden"});
  shapes.expect("scratch.gate_up", scratch.gate_up, DType::kBF16, {"pairs", "2 * intermediate"});
  shapes.expect("scratch.act", scratch.act, DType::kBF16, {"pairs", "intermediate"});
  shapes.bind("coded row", coded_row_bytes(shapes["intermediate"]));
  shapes.expect("scratch.act_codes", scratch.act_codes, DType::kU8, {"pairs", "coded row"});
  shapes.expect("scratch.products", scratch.products, DType::kF32, {"pairs", "hidden"});
}

}  // namespace

// Products are made when rows, gates and ups are no longer read, so they have the same memory.
ExpertScratch cut_expert_scratch(Arena& arena, const ExpertSizes& sizes) {
  const int64_t pairs = sizes.num_rows * sizes.num_slots;
  ExpertScratch scratch{.places = arena.tensor(DType::kI32, {pairs}),
                        .pairs = arena.tensor(DType::kI32, {pairs}),
                        .begins = arena.tensor(DType::kI32, {sizes.num_experts + 1}),
                        .jobs = arena.tensor(DType::kI32, {sizes.num_experts + 1}),
                        .rows = {},
                        .gate_up = {},
                        .act = arena.tensor(DType::kBF16, {pairs, sizes.intermediate}),
                        .act_codes = {},
                        .products = {}};
  Arena before_act = arena;
  scratch.rows = before_act.tensor(DType::kBF16, {pairs, sizes.hidden});
  scratch.gate_up = before_act.tensor(DType::kBF16, {pairs, 2 * sizes.intermediate});
  scratch.products = arena.tensor(DType::kF32, {pairs, sizes.hidden});
  scratch.act_codes = arena.tensor(DType::kU8, {pairs, coded_row_bytes(sizes.intermediate)});
  if (before_act.used_bytes() > arena.used_bytes()) arena = before_act;
  return scratch;
}

void route_experts(Stream& stream, const RouteExpertsArgs& args) {
  ShapeContract shapes("route_experts");
  shapes.bind("num_experts", args.router.num_rows);
  shapes.bind("hidden", args.router.num_cols);
  shapes.expect("x", args.x, DType::kBF16, {"m", "hidden"});
  shapes.expect("scores", args.scores, DType::kF32, {"m", "num_experts"});
  shapes.expect("experts", args.experts, DType::kI32, {"m", "k"});
  shapes.expect("shares", args.shares, DType::kF32, {"m", "k"});
  shapes.require(shapes["k"] > 0 && shapes["k"] <= shapes["num_experts"],
                 "k must be from 1 to num_experts");
  ops_of(stream.device()).route_experts(stream, args);
}

void expert_mlp(Stream& stream, const ExpertMlpArgs& args) {
  ShapeContract shapes("expert_mlp");
  shapes.bind("num_experts", args.gate_up.num_experts);
  shapes.bind("intermediate", args.down.first.num_cols);
  shapes.expect("x", args.x, DType::kBF16, {"m", "hidden"});
  shapes.expect("experts", args.experts, DType::kI32, {"m", "k"});
  shapes.expect("shares", args.shares, DType::kF32, {"m", "k"});
  shapes.expect("out", args.out, DType::kBF16, {"m", "hidden"});
  shapes.bind("1", 1);
  shapes.expect_or_absent("shared", args.shared, DType::kBF16, {"m", "hidden"});
  shapes.expect_or_absent("shared_gate", args.shared_gate, DType::kF32, {"m", "1"});
  shapes.require(args.shared.present() == args.shared_gate.present(),
                 "shared and shared_gate must be both present or both absent");
  require_experts(shapes, args.gate_up, 2 * shapes["intermediate"], shapes["hidden"],
                  "gate_up must be present and [2 * intermediate, hidden]");
  require_experts(shapes, args.down, shapes["hidden"], shapes["intermediate"],
                  "down must be present and [hidden, intermediate]");
  shapes.require(args.down.num_experts == args.gate_up.num_experts,
                 "gate_up and down must have as many experts");
  require_scratch(shapes, args.scratch);
  ops_of(stream.device()).expert_mlp(stream, args);
}

}  // namespace sluice
