// make_policies: names, pairs and options of policies, and the text of each error.
#include <functional>

#include <gtest/gtest.h>

#include "attention/policy_pair.h"
#include "core/error.h"

namespace sluice {
namespace {

void expect_error(const std::function<void()>& call, const std::vector<std::string>& words) {
  try {
    call();
    FAIL() << "accepted, without a word of " << words.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    for (const std::string& word : words) {
      EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
    }
  }
}

TEST(MakePolicies, NamesAndPairs) {
  for (const char* name : {"full", "streaming", "full+quest", "streaming+quest", "streaming+full",
                           "full+streaming", "full+full"}) {
    const std::unique_ptr<PolicyPair> policies = make_policies(name);
    EXPECT_EQ(policies->name(), name);
    EXPECT_EQ(policies->of(Phase::kPrefill).phase(), Phase::kPrefill);
    EXPECT_EQ(policies->of(Phase::kDecode).phase(), Phase::kDecode);
  }
  const KvBlockShape block{.num_kv_heads = 1, .head_dim = 16, .block_tokens = 64};
  const auto selects = [&](const char* name, Phase phase) {
    return make_policies(name)->rule(phase, block).selects();
  };
  EXPECT_FALSE(selects("full+quest", Phase::kPrefill));
  EXPECT_TRUE(selects("full+quest", Phase::kDecode));
  EXPECT_TRUE(selects("streaming+full", Phase::kPrefill));
  EXPECT_FALSE(selects("streaming+full", Phase::kDecode));
  EXPECT_FALSE(make_policies("full")->needs_block_ids(block));
  EXPECT_TRUE(make_policies("full+quest")->needs_block_ids(block));
}

TEST(MakePolicies, UnknownNamesAreErrors) {
  for (const char* name : {"", "quest2", "Full", "full+", "+quest", "full+quest+full", "a+b"}) {
    expect_error([&] { make_policies(name); },
                 {"sparse_policy is '" + std::string(name) + "'", "full, quest, streaming"});
  }
}

TEST(MakePolicies, AMissingPhaseIsAnErrorThatSaysWhatToWrite) {
  expect_error([] { make_policies("quest"); }, {"'quest' has no prefill", "write 'full+quest'"});
  expect_error([] { make_policies("quest+streaming"); },
               {"'quest' does not support prefill", "write 'full+streaming'"});
  expect_error([] { make_policies("quest+full"); }, {"write 'full'"});
}

TEST(MakePolicies, OptionsThatThePolicyDoesNotUseAreErrors) {
  expect_error([] { make_policies("full", {.page_tokens = 16}); },
               {"sparse_page_tokens", "'full'", "quest, streaming"});
  expect_error([] { make_policies("full+full", {.threshold_tokens = 0}); },
               {"sparse_threshold_tokens", "'full+full'"});
  expect_error([] { make_policies("streaming", {.topk_tokens = 64}); },
               {"sparse_topk_tokens", "'streaming'", "quest"});
  expect_error([] { make_policies("streaming", {.shared_list = true}); }, {"sparse_shared_list"});
  const SparseOptions all{.topk_tokens = 64,
                          .page_tokens = 64,
                          .sink_tokens = 0,
                          .recent_tokens = 0,
                          .threshold_tokens = 0,
                          .shared_list = true};
  EXPECT_NO_THROW(make_policies("full+quest", all));
  EXPECT_NO_THROW(make_policies("streaming+quest", all)) << "one of the two uses each of them";
}

TEST(MakePolicies, ValuesOutOfRangeAreErrors) {
  for (const int32_t page_tokens : {-16, 0, 8, 24, 144}) {
    expect_error([&] { make_policies("full+quest", {.page_tokens = page_tokens}); },
                 {"sparse_page_tokens is " + std::to_string(page_tokens), "multiple of 16"});
  }
  expect_error([] { make_policies("full+quest", {.topk_tokens = 0}); },
               {"sparse_topk_tokens is 0"});
  expect_error([] { make_policies("full+quest", {.sink_tokens = -1}); }, {"sparse_sink_tokens"});
  expect_error([] { make_policies("streaming", {.recent_tokens = -1}); }, {"sparse_recent_tokens"});
  expect_error([] { make_policies("streaming", {.threshold_tokens = -5}); },
               {"sparse_threshold_tokens is -5"});
}

TEST(PageTokens, FitTheBlock) {
  const auto block = [](int32_t tokens) {
    return KvBlockShape{.num_kv_heads = 1, .head_dim = 16, .block_tokens = tokens};
  };
  EXPECT_EQ(choose_page_tokens({}, block(256)), 32);
  EXPECT_EQ(choose_page_tokens({}, block(48)), 16) << "32 does not divide 48";
  EXPECT_EQ(choose_page_tokens({.page_tokens = 48}, block(48)), 48);
  EXPECT_EQ(make_policies("full+quest")->rule(Phase::kDecode, block(16)).page_tokens, 16);
  expect_error(
      [&] { make_policies("full+quest", {.page_tokens = 32})->rule(Phase::kDecode, block(48)); },
      {"sparse_page_tokens is 32", "48 tokens", "block_size"});
}

}  // namespace
}  // namespace sluice
