// Fingerprint and StoreKey: the names under which blocks of KV are stored.
//
// Used by the store, and by whoever looks a prompt up in it or announces its blocks to others. A
// fingerprint names everything that decides the bits of KV except the tokens; a key names the
// tokens of a block and of all blocks before it, under one fingerprint and salt. Keys are equal in
// every process and on every machine whose fingerprint agrees; the prefix index's hashes are not.
// Thread rule: pure functions and values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/digest.h"

namespace sluice {

struct Fingerprint : Digest {
  // The first 16 digits: the folder of its blocks.
  std::string folder() const { return hex().substr(0, 16); }
};

struct StoreKey : Digest {};

// What decides the bits of KV. Two engines whose inputs differ never read each other's blocks.
struct FingerprintInputs {
  // XXH3-128 of all bytes of the weights, in its canonical byte order; taken while loading.
  std::array<std::byte, 16> weights{};
  // Fields of the configuration that shape KV: name to value, as in "num_hidden_layers" to "28".
  std::map<std::string, std::string> model = {};
  // The rotation as applied: frequency of each pair, then the factor of attention, if any.
  std::vector<float> rope = {};
  std::string kv_dtype = {};      // "bf16"
  std::string block_layout = {};  // "[kv_head][K,V][token][head_dim]"
  int32_t block_tokens = 0;
  std::string prefill_policy = {};  // with its options: it changes what later layers compute
  // The arithmetic: level of the CPU's instructions, or architecture of the GPU, and the version of
  // the kernels.
  std::string numerics = {};
};

// SHA-256 of the inputs and of the version of the file format.
Fingerprint make_fingerprint(const FingerprintInputs& inputs);

// The parent of a first block. Requests with different salts share no blocks; "" is no salt.
StoreKey root_key(const Fingerprint& fingerprint, std::string_view cache_salt = {});

// The key of a block whose ids are `tokens`, after the block with the key `parent`.
StoreKey next_key(const StoreKey& parent, std::span<const int32_t> tokens);

// The keys of the whole blocks of `tokens`, in order; what is left over has no key.
// REQUIRES: block_tokens is positive.
std::vector<StoreKey> chain_keys(const StoreKey& root, std::span<const int32_t> tokens,
                                 int32_t block_tokens);

}  // namespace sluice
