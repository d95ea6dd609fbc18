// RankGroup: memory that all ranks of a group see, and where they meet.
//
// One object for ranks that are threads of a process; or one in each process over the same shared
// memory. A rank publishes bytes in its slot under a number, and others wait for that number: what
// is published before is read after. Data is ordered by these waits alone, so that ThreadSanitizer
// reports a missing one. Thread rule: any thread; one thread at a time publishes for a rank.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace sluice {

class RankGroup {
 public:
  struct Options {
    int32_t num_ranks = 1;
    size_t slot_bytes = size_t{1} << 20;      // each rank has two slots, used in turn
    int64_t time_limit_ns = 300'000'000'000;  // for a rank to come
  };

  // Of the memory that all ranks see.
  static size_t memory_bytes(const Options& options);
  // REQUIRES: `memory` is aligned to 64 bytes, all zero when the first rank's object is made, and
  // outlives the object.
  RankGroup(std::span<std::byte> memory, const Options& options);

  const Options& options() const { return options_; }
  std::span<std::byte> slot(int32_t rank, uint32_t number) const;

  // Rank `rank` has published under `number`. Numbers of a rank grow by one.
  void publish(int32_t rank, uint32_t number);
  // Waits until all ranks have published under `number`, or a later one. Errors: kDevice if a rank
  // failed, with its text; if one does not come within the time limit, naming it, and the group has
  // then failed. REQUIRES: `rank` is the caller's, and has published.
  void await_all(int32_t rank, uint32_t number);

  // Ends all waits: with an error that names `rank` and says `what`. The first text stays.
  void fail(int32_t rank, const std::string& what);
  bool has_failed() const;
  // From now on `word` becomes 1 when a rank fails by a call of this object, or at once if one has.
  // For waits that cannot read the group's memory. REQUIRES: `unwatch` before the word ends.
  void watch(std::atomic<uint32_t>& word);
  void unwatch(std::atomic<uint32_t>& word);
  // Errors: kDevice if the group has failed.
  void check() const;

 private:
  struct Memory;
  struct RankWord;
  void await(int32_t rank, int32_t other, uint32_t number);

  const Options options_;
  Memory* const memory_;
  RankWord* const words_;
  std::byte* const slots_;
  std::mutex mutex_;                             // protects what follows
  std::vector<std::atomic<uint32_t>*> watched_;  // each becomes 1 when a rank fails
};

}  // namespace sluice
