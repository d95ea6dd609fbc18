// make_policies: names, pairs and options of policies, and the text of each error.
#include <cmath>
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
                           "full+streaming", "full+full", "sampled+quest", "xattention+full",
                           "avgpool+streaming", "minference+quest", "flexprefill+quest"}) {
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
                 {"sparse_policy is '" + std::string(name) + "'",
                  "avgpool, flexprefill, full, minference, quest, sampled, streaming, xattention"});
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

TEST(MakePolicies, OptionsOfTilePolicies) {
  const KvBlockShape block{.num_kv_heads = 4, .head_dim = 16, .block_tokens = 256};
  const SelectionRule rule = make_policies("xattention+quest")->rule(Phase::kPrefill, block);
  EXPECT_EQ(rule.form, SelectionForm::kTileMasks);
  EXPECT_EQ(rule.num_masks, 4);
  EXPECT_TRUE(rule.selects_all(4096));
  EXPECT_FALSE(rule.selects_all(4097));
  const SelectionRule top =
      make_policies("avgpool+full", {.topk_tokens = 5000, .shared_list = true})
          ->rule(Phase::kPrefill, block);
  EXPECT_EQ(top.num_masks, 1);
  EXPECT_TRUE(top.selects_all(5120)) << "40 tiles";
  EXPECT_FALSE(top.selects_all(5121));
  EXPECT_TRUE(make_policies("sampled+full", {.coverage = 1})
                  ->rule(Phase::kPrefill, block)
                  .selects_all(int64_t{1} << 40));

  expect_error([] { make_policies("xattention+full", {.probe_rows = 4}); },
               {"sparse_probe_rows", "'xattention+full'", "sampled"});
  expect_error([] { make_policies("avgpool+full", {.two_stage_tokens = 4096}); },
               {"sparse_two_stage_tokens", "'avgpool+full'", "sampled"});
  expect_error([] { make_policies("sampled+full", {.stride = 8}); },
               {"sparse_stride", "xattention"});
  expect_error([] { make_policies("sampled+full", {.topk_tokens = 8}); }, {"sparse_topk_tokens"});
  expect_error([] { make_policies("full+quest", {.tail_tokens = 8}); },
               {"sparse_tail_tokens", "avgpool, flexprefill, minference, sampled, xattention"});
  expect_error([] { make_policies("streaming+quest", {.audit = true}); },
               {"sparse_audit", "avgpool, flexprefill, minference, sampled, xattention"});
  for (const char* name : {"avgpool+quest", "flexprefill+full", "minference+full", "sampled+full",
                           "xattention+full"}) {
    EXPECT_EQ(make_policies(name)->audit(), nullptr) << name;
    EXPECT_NE(make_policies(name, {.audit = true})->audit(), nullptr) << name;
  }
  expect_error([] { make_policies("full+quest", {.coverage_of = CoverageOf::kAll}); },
               {"sparse_coverage_of"});
  const KvBlockShape small{.num_kv_heads = 4, .head_dim = 16, .block_tokens = 192};
  expect_error([&] { make_policies("sampled+full")->rule(Phase::kPrefill, small); },
               {"'sampled'", "block_size is 192", "such as 256"});
}

TEST(MakePolicies, ValuesOfTilePoliciesOutOfRangeAreErrors) {
  for (const double value : {0.0, -1.0, 1.01, std::nan("")}) {
    expect_error([&] { make_policies("sampled+full", {.coverage = value}); },
                 {"sparse_coverage is"});
    expect_error([&] { make_policies("avgpool+full", {.alpha = value}); }, {"sparse_alpha is"});
  }
  expect_error([] { make_policies("sampled+full", {.probe_rows = 3}); },
               {"sparse_probe_rows is 3", "power of two"});
  expect_error([] { make_policies("sampled+full", {.probe_rows = 32}); },
               {"sparse_probe_rows is 32"});
  expect_error([] { make_policies("xattention+full", {.stride = 12}); },
               {"sparse_stride is 12", "power of two"});
  expect_error([] { make_policies("avgpool+full", {.pool_tokens = 4}); },
               {"sparse_pool_tokens is 4"});
  expect_error([] { make_policies("avgpool+full", {.pool_tokens = 48}); }, {"power of two"});
  expect_error([] { make_policies("avgpool+full", {.query_pool_tokens = 64}); },
               {"sparse_query_pool_tokens is 64", "1, 16 or 128"});
  expect_error([] { make_policies("minference+full", {.segment_tokens = 100}); },
               {"sparse_segment_tokens is 100"});
  expect_error([] { make_policies("minference+full", {.adaptive_budget = 0}); },
               {"sparse_adaptive_budget is 0"});
  expect_error([] { make_policies("minference+full", {.adaptive_budget = 1.5}); },
               {"sparse_adaptive_budget is 1.5"});
  expect_error([] { make_policies("sampled+full", {.adaptive_budget = 0.3}); },
               {"sparse_adaptive_budget", "minference"});
  expect_error([] { make_policies("avgpool+full", {.profile = "p.json"}); },
               {"sparse_profile", "minference"});
  expect_error([] { make_policies("minference+full", {.column_tokens = 8}); },
               {"sparse_column_tokens", "sampled"});
  for (const double value : {-0.1, 1.01, std::nan("")}) {
    expect_error([&] { make_policies("flexprefill+full", {.divergence = value}); },
                 {"sparse_divergence is"});
  }
  expect_error([] { make_policies("minference+full", {.divergence = 0.1}); },
               {"sparse_divergence", "'minference+full'", "flexprefill"});
  expect_error([] { make_policies("flexprefill+full", {.slash_tokens = 512}); },
               {"sparse_slash_tokens", "'flexprefill+full'", "minference"});
  expect_error([] { make_policies("flexprefill+full", {.max_budget_tokens = 512}); },
               {"sparse_max_budget_tokens", "avgpool, sampled, xattention"});
  expect_error([] { make_policies("sampled+full", {.column_tokens = 10000}); },
               {"sparse_column_tokens is 10000"});
  expect_error(
      [] { make_policies("sampled+full", {.min_budget_tokens = 512, .max_budget_tokens = 511}); },
      {"sparse_min_budget_tokens is 512", "which is 511"});
}

// avgpool takes tiles by one rule. In a pair the option that the decode policy uses is its own.
TEST(MakePolicies, OneOfSeveralChoices) {
  expect_error(
      [] { make_policies("minference+full", {.adaptive_budget = 0.3, .slash_tokens = 128}); },
      {"sparse_adaptive_budget and sparse_slash_tokens are given", "leave out"});
  expect_error(
      [] { make_policies("minference+full", {.profile = "p.json", .vertical_tokens = 128}); },
      {"sparse_profile and sparse_vertical_tokens are given"});
  expect_error(
      [] { make_policies("minference+full", {.adaptive_budget = 0.3, .profile = "p.json"}); },
      {"sparse_adaptive_budget and sparse_profile are given"});
  expect_error([] { make_policies("avgpool+full", {.topk_tokens = 64, .coverage = 0.5}); },
               {"sparse_topk_tokens and sparse_coverage are given", "'avgpool'"});
  expect_error([] { make_policies("avgpool+quest", {.coverage = 0.5, .alpha = 0.5}); },
               {"sparse_coverage and sparse_alpha are given"});
  expect_error([] { make_policies("avgpool+full", {.coverage_of = CoverageOf::kRest}); },
               {"sparse_coverage_of", "without sparse_coverage"});
  const std::unique_ptr<PolicyPair> pair =
      make_policies("avgpool+quest", {.topk_tokens = 4096, .coverage = 0.5});
  const KvBlockShape block{.num_kv_heads = 1, .head_dim = 16, .block_tokens = 256};
  EXPECT_EQ(pair->rule(Phase::kPrefill, block).full_rows_end, 4096) << "the threshold alone";
  EXPECT_EQ(pair->rule(Phase::kDecode, block).page_rule.top_pages, 128);
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
