// Digest: 32 bytes of SHA-256, and Sha256, which computes them from bytes that come in pieces.
//
// Used by store_key. SHA-256 names what other processes and machines must agree on, and what must
// be safe from forgery; XXH3 only finds damage (store/checksum.h).
// Thread rule: a Digest is a value; a Sha256 belongs to one thread.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace sluice {

struct Digest {
  std::array<std::byte, 32> bytes{};

  auto operator<=>(const Digest&) const = default;
  std::string hex() const;  // 64 lower-case digits

  // Empty unless `text` is 64 lower-case digits of base 16.
  static std::optional<Digest> from_hex(std::string_view text);
};

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  Sha256& add(std::span<const std::byte> bytes);
  // The length in 8 bytes, then the bytes: no two lists of texts give the same input.
  Sha256& add_with_length(std::span<const std::byte> bytes);
  // REQUIRES: called once, after the last bytes.
  Digest finish();

 private:
  struct Freer {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Freer> context_;
};

}  // namespace sluice
