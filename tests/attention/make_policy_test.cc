// Names, pairs and options of policies: what is made, and what each error says.
#include <functional>

#include <gtest/gtest.h>

#include "attention/policy.h"
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

TEST(MakePolicy, NamesAndPairs) {
  for (const char* name : {"full", "streaming", "full+quest", "streaming+quest", "streaming+full",
                           "full+streaming", "full+full"}) {
    const std::unique_ptr<Policy> policy = make_policy(name);
    EXPECT_EQ(policy->name(), name);
    EXPECT_TRUE(policy->supports_prefill() && policy->supports_decode()) << name;
  }
  EXPECT_FALSE(make_policy("full+quest")->makes_lists(Phase::kPrefill));
  EXPECT_TRUE(make_policy("full+quest")->makes_lists(Phase::kDecode));
  EXPECT_TRUE(make_policy("streaming+full")->makes_lists(Phase::kPrefill));
  EXPECT_FALSE(make_policy("streaming+full")->makes_lists(Phase::kDecode));
  EXPECT_FALSE(make_policy("full")->wants_block_ids());
  EXPECT_TRUE(make_policy("full+quest")->wants_block_ids());
}

TEST(MakePolicy, UnknownNamesAreErrors) {
  for (const char* name : {"", "quest2", "Full", "full+", "+quest", "full+quest+full", "a+b"}) {
    expect_error([&] { make_policy(name); },
                 {"sparse_policy is '" + std::string(name) + "'", "full, quest, streaming"});
  }
}

TEST(MakePolicy, AMissingPhaseIsAnErrorThatSaysWhatToWrite) {
  expect_error([] { make_policy("quest"); }, {"'quest' has no prefill", "write 'full+quest'"});
  expect_error([] { make_policy("quest+streaming"); },
               {"'quest' does not support prefill", "write 'full+streaming'"});
  expect_error([] { make_policy("quest+full"); }, {"write 'full'"});
}

TEST(MakePolicy, OptionsThatThePolicyDoesNotUseAreErrors) {
  expect_error([] { make_policy("full", {.page_tokens = 16}); },
               {"sparse_page_tokens", "'full'", "quest, streaming"});
  expect_error([] { make_policy("full+full", {.threshold_tokens = 0}); },
               {"sparse_threshold_tokens", "'full+full'"});
  expect_error([] { make_policy("streaming", {.topk_tokens = 64}); },
               {"sparse_topk_tokens", "'streaming'", "quest"});
  expect_error([] { make_policy("streaming", {.shared_list = true}); }, {"sparse_shared_list"});
  const PolicyOptions all{.topk_tokens = 64,
                          .page_tokens = 64,
                          .sink_tokens = 0,
                          .recent_tokens = 0,
                          .threshold_tokens = 0,
                          .shared_list = true};
  EXPECT_NO_THROW(make_policy("full+quest", all));
  EXPECT_NO_THROW(make_policy("streaming+quest", all)) << "one of the two uses each of them";
}

TEST(MakePolicy, ValuesOutOfRangeAreErrors) {
  for (const int32_t page_tokens : {-16, 0, 8, 24, 144}) {
    expect_error([&] { make_policy("full+quest", {.page_tokens = page_tokens}); },
                 {"sparse_page_tokens is " + std::to_string(page_tokens), "multiple of 16"});
  }
  expect_error([] { make_policy("full+quest", {.topk_tokens = 0}); }, {"sparse_topk_tokens is 0"});
  expect_error([] { make_policy("full+quest", {.sink_tokens = -1}); }, {"sparse_sink_tokens"});
  expect_error([] { make_policy("streaming", {.recent_tokens = -1}); }, {"sparse_recent_tokens"});
  expect_error([] { make_policy("streaming", {.threshold_tokens = -5}); },
               {"sparse_threshold_tokens is -5"});
}

TEST(PageTokens, FitTheBlock) {
  const auto block = [](int32_t tokens) {
    return KvBlockShape{.num_kv_heads = 1, .head_dim = 16, .block_tokens = tokens};
  };
  EXPECT_EQ(choose_page_tokens({}, block(256)), 32);
  EXPECT_EQ(choose_page_tokens({}, block(48)), 16) << "32 does not divide 48";
  EXPECT_EQ(choose_page_tokens({.page_tokens = 48}, block(48)), 48);
  EXPECT_NO_THROW(make_policy("full+quest")->check_layout(block(16)));
  expect_error([&] { make_policy("full+quest", {.page_tokens = 32})->check_layout(block(48)); },
               {"sparse_page_tokens is 32", "48 tokens", "block_size"});
}

}  // namespace
}  // namespace sluice
