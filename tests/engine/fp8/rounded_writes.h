// A hook that rounds the keys and values of an engine with KV in bf16 when they are written, as KV
// in FP8 or int8 does. What the engine answers then must be what one with that KV answers.
//
// The linker gives this program's calls of rope_and_write_kv to the hook (`--wrap`,
// CMakeLists.txt). Thread rule: host thread.
#pragma once

#include "core/kv_element.h"

namespace sluice::testing {

// Hooks all writes as long as it exists.
class RoundedWrites {
 public:
  // Of keys in bf16 only the values are rounded.
  explicit RoundedWrites(KvElement element = KvElement::kE4m3, bool keys_in_bf16 = false);
  ~RoundedWrites();
  RoundedWrites(const RoundedWrites&) = delete;
  RoundedWrites& operator=(const RoundedWrites&) = delete;
};

}  // namespace sluice::testing
