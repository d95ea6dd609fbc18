// streaming as one op: select_pages without scores.
#include "attention/policies/streaming.h"

namespace sluice {
namespace {

// Defaults of the options, in tokens.
constexpr int32_t kStreamingSinkTokens = 64;
constexpr int32_t kStreamingRecentTokens = 2048;

// Drops topk_tokens: in a pair it is an option of the other policy.
SparseOptions without_topk(SparseOptions options) {
  options.topk_tokens.reset();
  return options;
}

}  // namespace

StreamingPolicy::StreamingPolicy(Phase phase, const SparseOptions& options)
    : PageRulePolicy("streaming", phase, without_topk(options),
                     {.topk_tokens = 0,
                      .sink_tokens = kStreamingSinkTokens,
                      .recent_tokens = kStreamingRecentTokens,
                      .threshold_tokens = 0},
                     ListOf::kQueryPage) {}

Selection StreamingPolicy::select(Stream& stream, const SelectInput& input) {
  const PageList pages = cut_lists(input.kv_end.dim(0), input.batch);
  select_pages(stream, {.scores = {},
                        .batch = input.batch,
                        .kv_end = input.kv_end,
                        .rule = page_rule(),
                        .pages = pages});
  return pages;
}

}  // namespace sluice
