// Reads any text as a profile of heads: an Error, or a profile whose sizes are in range.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "attention/head_profile.h"
#include "core/error.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

bool in_range(int32_t size) { return size >= 0 && size <= sluice::kMaxHeadSize; }

void check(const sluice::HeadProfile& profile) {
  require(profile.num_layers() > 0 && profile.num_heads() > 0);
  for (int64_t layer = 0; layer < profile.num_layers(); ++layer) {
    for (int64_t head = 0; head < profile.num_heads(); ++head) {
      const sluice::ProfiledHead& pattern = profile.at(layer, head);
      require(in_range(pattern.num_verticals) && in_range(pattern.num_slashes));
      require(profile.has(pattern.kind));
    }
    const sluice::HeadGroup group = profile.group(layer, 0, profile.num_heads());
    require(in_range(group.num_verticals) && in_range(group.num_slashes));
    require(group.has_lines || group.has_tiles || group.recent_tokens >= 0);
  }
  require(!profile.describe().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check(sluice::parse_head_profile({reinterpret_cast<const char*>(data), size}, "profile.json"));
  } catch (const sluice::Error&) {
  }
  return 0;
}
