// Shape contract of sample.
#include "ops/sample.h"

#include "ops/ops.h"
#include "ops/shape_contract.h"

namespace sluice {
namespace {

// REQUIRES: m is bound.
void expect_adjustments(ShapeContract& shapes, const LogitAdjustments& adjustments) {
  shapes.bind("m + 1", shapes["m"] + 1);
  shapes.expect("begin", adjustments.begin, DType::kI32, {"m + 1"});
  shapes.expect("ids", adjustments.ids, DType::kI32, {"n"});
  shapes.expect("bias", adjustments.bias, DType::kF32, {"n"});
  shapes.expect("repetition", adjustments.repetition, DType::kF32, {"n"});
  shapes.expect("penalty", adjustments.penalty, DType::kF32, {"n"});
  shapes.expect("scratch", adjustments.scratch, DType::kF32, {"n"});
}

}  // namespace

void sample(Stream& stream, const SampleArgs& args) {
  ShapeContract shapes("sample");
  shapes.expect("logits", args.logits, DType::kF32, {"m", "vocab"});
  shapes.require(shapes["vocab"] > 0, "vocab must be at least 1");
  shapes.bind("sizeof(SampleRow)", sizeof(SampleRow));
  shapes.expect("rows", args.rows, DType::kU8, {"m", "sizeof(SampleRow)"});
  shapes.expect_or_absent("suppressed", args.suppressed, DType::kI32, {"m", "s"});
  shapes.expect_or_absent("given", args.given, DType::kI32, {"m"});
  shapes.bind("words", (shapes["vocab"] + 31) / 32);
  shapes.expect_or_absent("masks", args.masks, DType::kI32, {"a", "words"});
  if (args.adjustments.present()) expect_adjustments(shapes, args.adjustments);
  shapes.expect("token_ids", args.token_ids, DType::kI32, {"m"});
  shapes.expect("logprobs", args.logprobs, DType::kF32, {"m"});
  shapes.expect_or_absent("top_token_ids", args.top_token_ids, DType::kI32, {"m", "t"});
  shapes.expect_or_absent("top_logprobs", args.top_logprobs, DType::kF32, {"m", "t"});
  shapes.require(args.top_token_ids.present() == args.top_logprobs.present(),
                 "top_token_ids and top_logprobs must be both present or both absent");
  shapes.require(!args.top_token_ids.present() || shapes["t"] <= shapes["vocab"],
                 "t must be at most vocab");
  ops_of(stream.device()).sample(stream, args);
}

bool is_logits_not_finite(const Error& error) {
  // Compares the text after the row number; the error's code, kDevice, is shared with other faults.
  constexpr std::string_view kText = kLogitsNotFinite;
  return error.message().ends_with(kText.substr(kText.find("of the")));
}

}  // namespace sluice
