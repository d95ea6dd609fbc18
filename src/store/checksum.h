// Checksum: XXH3-64 of bytes that come in pieces. It finds damage; it is no protection against a
// forger, who could write a block of his own with all its checksums.
//
// Used by block_file, block_reader and block_writer. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace sluice {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  struct Freer {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Freer> state_;
};

// Of bytes that lie together.
uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace sluice
