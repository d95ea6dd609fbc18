// gather_pages from its definition, element by element. Used by tests only.
// Thread rule: a pure function over host-readable memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/pages/gather_pages.h"

namespace sluice::reference {

struct GatheredPages {
  std::vector<std::byte> dst;  // all of dst: num_blocks * stride_bytes, gaps included
  int64_t num_bytes = 0;       // read from src
};

// What `dst` must hold after the op; bytes that the op does not write keep their value.
GatheredPages gather_pages(const GatherPagesArgs& args);

}  // namespace sluice::reference
