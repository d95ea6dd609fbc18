// Keys and fingerprints against digests that Python's hashlib computed from the same bytes: other
// programs compute them, too, so they may never change.
#include "store/store_key.h"

#include <functional>
#include <set>

#include <gtest/gtest.h>

namespace sluice {
namespace {

Fingerprint counting_fingerprint() {
  Fingerprint fingerprint;
  for (size_t i = 0; i < fingerprint.bytes.size(); ++i) {
    fingerprint.bytes[i] = static_cast<std::byte>(i);
  }
  return fingerprint;
}

FingerprintInputs some_inputs() {
  FingerprintInputs inputs{.model = {{"b", "22"}, {"a", "1"}},
                           .rope = {1.0F, 0.5F},
                           .kv_dtype = "bf16",
                           .block_layout = "layout",
                           .block_tokens = 1024,
                           .prefill_policy = "full",
                           .numerics = "avx2"};
  for (size_t i = 0; i < inputs.weights.size(); ++i) {
    inputs.weights[i] = static_cast<std::byte>(i);
  }
  return inputs;
}

TEST(StoreKey, IsTheChainOfDigests) {
  const Fingerprint fingerprint = counting_fingerprint();
  const StoreKey root = root_key(fingerprint);
  EXPECT_EQ(root.hex(), "630dcd2966c4336691125448bbb25b4ff412a49c732db2c8abc1b8581bd710dd");
  EXPECT_EQ(root_key(fingerprint, "tenant").hex(),
            "7b103ff8ed35082e6c53bcf1c1610465ba3a042df8c7f16589d911070bedf3bb");
  const std::vector<int32_t> tokens = {1, 2, 3, -1, 5, 6, 7, 0x01020304, 9};
  const std::vector<StoreKey> keys = chain_keys(root, tokens, 4);
  ASSERT_EQ(keys.size(), 2u) << "the ninth token fills no block";
  EXPECT_EQ(keys[0].hex(), "4217310c461ad912ad765440c2e331dbfaf8faa1c86a937ff68b346fa9fd44ab");
  EXPECT_EQ(keys[1].hex(), "9be3fe5f96a0d065bde6a60fd1e038109339aad58798c43d35ca73e61cc2e327");
  EXPECT_EQ(next_key(root, std::span(tokens).first(4)), keys[0]);
  EXPECT_EQ(next_key(keys[0], std::span(tokens).subspan(4, 4)), keys[1]);
  EXPECT_TRUE(chain_keys(root, std::span(tokens).first(3), 4).empty());
}

TEST(StoreKey, DependsOnSaltAndOnEverythingBefore) {
  const Fingerprint fingerprint = counting_fingerprint();
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<int32_t> other = tokens;
  other[0] = 0;
  const auto last = [&](const StoreKey& root, const std::vector<int32_t>& ids) {
    return chain_keys(root, ids, 4).back();
  };
  const StoreKey root = root_key(fingerprint);
  EXPECT_NE(last(root, tokens), last(root, other)) << "another first block";
  EXPECT_NE(last(root, tokens), last(root_key(fingerprint, "x"), tokens));
  EXPECT_NE(root_key(fingerprint, "x"), root_key(fingerprint, "y"));
}

TEST(Digest, ReadsItsOwnText) {
  const Fingerprint fingerprint = counting_fingerprint();
  const std::string hex = fingerprint.hex();
  ASSERT_EQ(hex.size(), 64u);
  EXPECT_EQ(hex.substr(0, 8), "00010203");
  EXPECT_EQ(fingerprint.folder(), "0001020304050607");
  EXPECT_EQ(Digest::from_hex(hex), fingerprint);
  for (const std::string& bad :
       {hex.substr(1), hex + "0", "g" + hex.substr(1), "A" + hex.substr(1), std::string()}) {
    EXPECT_EQ(Digest::from_hex(bad), std::nullopt) << bad;
  }
}

TEST(Fingerprint, IsTheDigestOfAllInputs) {
  EXPECT_EQ(make_fingerprint(some_inputs()).hex(),
            "8e7a99b6174b715088033df39f23f4e109aa368369b3a795a70e7c29ebdff816");
}

TEST(Fingerprint, ChangesWithEveryInput) {
  using Inputs = FingerprintInputs;
  const std::vector<std::function<void(Inputs&)>> changes = {
      [](Inputs&) {},
      [](Inputs& inputs) { inputs.weights[15] = std::byte{0}; },
      [](Inputs& inputs) { inputs.model["a"] = "2"; },
      [](Inputs& inputs) { inputs.model["c"] = ""; },
      [](Inputs& inputs) {
        inputs.model = {{"a", "1b"}, {"", "22"}};
      },
      [](Inputs& inputs) { inputs.rope[1] = 0.25F; },
      [](Inputs& inputs) { inputs.rope.push_back(0); },
      [](Inputs& inputs) { inputs.kv_dtype = "f16"; },
      [](Inputs& inputs) { inputs.block_layout = "other"; },
      [](Inputs& inputs) { inputs.block_tokens = 512; },
      [](Inputs& inputs) { inputs.prefill_policy = "sampled, coverage 0.8"; },
      [](Inputs& inputs) { inputs.numerics = "avx512"; },
      // The same letters in other fields.
      [](Inputs& inputs) { inputs.kv_dtype = "bf16l", inputs.block_layout = "ayout"; },
  };
  std::set<Digest> seen;
  for (const auto& change : changes) {
    Inputs inputs = some_inputs();
    change(inputs);
    EXPECT_TRUE(seen.insert(make_fingerprint(inputs)).second) << seen.size();
  }
}

}  // namespace
}  // namespace sluice
