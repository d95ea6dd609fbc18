// The shape contract, and the kernel of the stream's device.
#include "lab/lists/replay_pages.h"

#include "device/device.h"
#include "ops/shape_contract.h"

namespace sluice::lab {

void replay_pages(Stream& stream, const ReplayPagesArgs& args) {
  ShapeContract shapes("replay_pages");
  const PageList& pages = args.pages;
  shapes.bind("1", 1);
  shapes.expect("recorded", args.recorded, DType::kI32,
                {"num_list_heads", "num_steps", "top_pages"});
  shapes.expect("kv_end", args.kv_end, DType::kI32, {"num_seqs"});
  shapes.expect("pages.page_ids", pages.page_ids, DType::kI32,
                {"num_seqs", "num_list_heads", "1", "max_pages"});
  shapes.require(shapes["num_steps"] > 0, "there must be a recorded step");
  shapes.require(shapes["top_pages"] == args.rule.top_pages,
                 "recorded lists must have rule.top_pages pages");
  shapes.require(pages.q_page_tokens == 0, "q_page_tokens must be 0");
  shapes.require(args.rule.sink_pages + shapes["top_pages"] <= shapes["max_pages"],
                 "page_ids must have room for sinks and top_pages");
  // Before the threshold a list has all pages, and nothing in it was chosen by score.
  shapes.require(args.first_pos >= args.rule.threshold_tokens,
                 "first_pos must be at rule.threshold_tokens or later");
  const bool is_cpu = stream.device().kind() == DeviceKind::kCpu;
  return is_cpu ? replay_pages_on_cpu(stream, args) : replay_pages_on_cuda(stream, args);
}

}  // namespace sluice::lab
