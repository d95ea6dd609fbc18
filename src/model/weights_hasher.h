// WeightsHasher: XXH3-128 of all weights of a checkpoint, on a thread beside their loading.
//
// Made by LlmEngine if KV is stored: the hash tells models apart (store/store_key.h). Both threads
// read the same files, so what one has read comes to the other from the page cache, and the start
// takes no longer unless hashing is slower than loading. Thread rule: the host thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <thread>

#include "io/model_directory.h"
#include "model/weights.h"

namespace sluice {

using WeightsHash = std::array<std::byte, 16>;  // in the canonical order of XXH3-128

class WeightsHasher {
 public:
  // Begins. The hash has every tensor's name, type, shape and bytes, in the order of `sources`,
  // which does not depend on how files are cut into shards. REQUIRES: both outlive this object.
  WeightsHasher(const Checkpoint& checkpoint, std::span<const WeightSource> sources);
  // Ends soon.
  ~WeightsHasher() = default;

  // Waits for the end. Errors: kModel for a file that cannot be read. REQUIRES: called once.
  WeightsHash finish();

 private:
  WeightsHash result_{};
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses the others
};

// Dummy weights follow from their seed.
WeightsHash hash_of_dummy_weights(int64_t seed);

}  // namespace sluice
