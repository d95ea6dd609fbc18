// Every part of an input has its length before it, so that no two inputs give the same bytes.
#include "store/store_key.h"

#include <bit>

#include "core/error.h"
#include "store/block_file.h"
#include "store/little_endian.h"

namespace sluice {
namespace {

// Token ids are hashed as they lie in memory.
static_assert(std::endian::native == std::endian::little);

void add(Sha256& sha, std::string_view text) {
  sha.add_with_length(std::as_bytes(std::span(text)));
}

void add(Sha256& sha, uint64_t number) {
  std::array<std::byte, 8> bytes;
  store_little_endian(number, bytes);
  sha.add(bytes);
}

}  // namespace

Fingerprint make_fingerprint(const FingerprintInputs& inputs) {
  Sha256 sha;
  add(sha, "sluice KV");
  add(sha, kBlockFileVersion);
  sha.add(inputs.weights);
  add(sha, inputs.model.size());
  for (const auto& [name, value] : inputs.model) {
    add(sha, name);
    add(sha, value);
  }
  sha.add_with_length(std::as_bytes(std::span(inputs.rope)));
  add(sha, inputs.kv_dtype);
  add(sha, inputs.block_layout);
  add(sha, static_cast<uint64_t>(inputs.block_tokens));
  add(sha, inputs.prefill_policy);
  add(sha, inputs.numerics);
  return {sha.finish()};
}

StoreKey root_key(const Fingerprint& fingerprint, std::string_view cache_salt) {
  Sha256 sha;
  sha.add(fingerprint.bytes).add(std::as_bytes(std::span(cache_salt)));
  return {sha.finish()};
}

StoreKey next_key(const StoreKey& parent, std::span<const int32_t> tokens) {
  Sha256 sha;
  sha.add(parent.bytes).add(std::as_bytes(tokens));
  return {sha.finish()};
}

std::vector<StoreKey> chain_keys(const StoreKey& root, std::span<const int32_t> tokens,
                                 int32_t block_tokens) {
  SLUICE_CHECK(block_tokens > 0, "blocks of {} tokens", block_tokens);
  const auto count = static_cast<size_t>(block_tokens);
  std::vector<StoreKey> keys;
  for (size_t begin = 0; begin + count <= tokens.size(); begin += count) {
    keys.push_back(next_key(keys.empty() ? root : keys.back(), tokens.subspan(begin, count)));
  }
  return keys;
}

}  // namespace sluice
