// A cache must hold every page that a step lists, so it holds whole lists.
#include "engine/plan/hot_page_choice.h"

#include <fmt/format.h>

#include "engine/plan/memory_fit.h"

namespace sluice {

HotPageChoice choose_hot_pages(const HotPageInput& input, size_t bytes) {
  const int32_t page_tokens = input.rule.page_tokens;
  const int64_t list_pages = input.rule.max_listed_pages(input.max_tokens);
  const int32_t num_places =
      HotPageCache::places_in(bytes, input.layout, input.num_blocks, page_tokens);
  if (num_places < list_pages) {
    return {.sizes = {},
            .note = fmt::format(
                "kv_device_bytes keeps blocks and no hot pages: {} hold {} pages of {} tokens a "
                "layer and KV head, and a list has up to {}",
                readable_bytes(bytes), num_places, page_tokens, list_pages)};
  }
  const int64_t num_seqs = num_places / list_pages;
  std::string note = fmt::format(
      "kv_device_bytes keeps hot pages: {} of {} tokens a layer and KV head, {:.1f} x the longest "
      "list of decode",
      num_places, page_tokens, static_cast<double>(num_places) / static_cast<double>(list_pages));
  if (num_seqs < input.max_seqs) {
    note += fmt::format("; in a step of more than {} such lists the rest is gathered", num_seqs);
  }
  return {.sizes = {.num_places = num_places, .page_tokens = page_tokens}, .note = std::move(note)};
}

}  // namespace sluice
