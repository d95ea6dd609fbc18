// avgpool as probes of kind kPooled.
#include "attention/policies/avgpool.h"

#include "core/error.h"

namespace sluice {
namespace {

constexpr int32_t kTopkTokens = 8192;
constexpr int32_t kKeyPoolTokens = 16;
constexpr int32_t kQueryPoolTokens = 128;
// FlashPrefill's pools: all rows, and one key per tile.
constexpr int32_t kKeyPoolTokensOfAlpha = 128;
constexpr int32_t kQueryPoolTokensOfAlpha = 1;

TileRule make_choice(const SparseOptions& options) {
  validate(options);
  require_one_of(options, "avgpool", AvgPoolPolicy::kAlternatives);
  if (options.coverage) return coverage_choice(options, *options.coverage);
  if (options.coverage_of) {
    fail(ErrorCode::kInvalidArgument,
         "sparse_coverage_of is given without sparse_coverage, so 'avgpool' takes tiles by another "
         "rule; leave it out or give both");
  }
  if (options.alpha) return {.choice = TileChoice::kAlpha, .share = mass_share(*options.alpha)};
  const int32_t topk_tokens = options.topk_tokens.value_or(kTopkTokens);
  return {.choice = TileChoice::kTop,
          .top_tiles = static_cast<int32_t>(mask_tiles_of(topk_tokens))};
}

TileProbes make_probes(const SparseOptions& options) {
  const bool by_alpha = options.alpha.has_value();
  const int32_t query_pool_tokens =
      options.query_pool_tokens.value_or(by_alpha ? kQueryPoolTokensOfAlpha : kQueryPoolTokens);
  if (query_pool_tokens != 1 && query_pool_tokens != 16 && query_pool_tokens != kMaskTileTokens) {
    fail(ErrorCode::kInvalidArgument, "sparse_query_pool_tokens is {}, but it is 1, 16 or {}",
         query_pool_tokens, kMaskTileTokens);
  }
  return {.kind = TileProbeKind::kPooled,
          .key_pool_tokens = power_of_two("sparse_pool_tokens", options.pool_tokens,
                                          by_alpha ? kKeyPoolTokensOfAlpha : kKeyPoolTokens),
          .query_pool_tokens = query_pool_tokens,
          .pools_maxima = options.pool == TilePool::kMax};
}

}  // namespace

AvgPoolPolicy::AvgPoolPolicy(const SparseOptions& options)
    : ProbePolicy("avgpool", options, make_choice(options), make_probes(options)) {}

}  // namespace sluice
