// A hook that rounds the keys and values of an engine with KV in bf16 when they are written, as KV
// in FP8 does. What the engine answers then must be what one with FP8 answers.
//
// The linker gives this program's calls of rope_and_write_kv to the hook (`--wrap`,
// CMakeLists.txt). Thread rule: host thread.
#pragma once

namespace sluice::testing {

// Hooks all writes as long as it exists.
class RoundedWrites {
 public:
  RoundedWrites();
  ~RoundedWrites();
  RoundedWrites(const RoundedWrites&) = delete;
  RoundedWrites& operator=(const RoundedWrites&) = delete;
};

}  // namespace sluice::testing
