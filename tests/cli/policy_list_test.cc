// Lists of configurations: which options reach which policy.
#include "cli/policy_list.h"

#include <gtest/gtest.h>

#include "sluice/error.h"

namespace sluice::cli {
namespace {

std::string refusal(const std::vector<std::string>& names, const SparseOptions& common) {
  try {
    policy_list(names, common);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return {};
}

TEST(PolicyList, GivesEachPolicyTheOptionsThatItUses) {
  SparseOptions common;
  common.probe_rows = 8;
  common.page_tokens = 16;
  common.tail_tokens = 0;
  const auto policies =
      policy_list({"full", "aggressive", "sampled+quest", "avgpool+full"}, common);
  ASSERT_EQ(policies.size(), 4u);
  EXPECT_EQ(describe_policy(policies[0].sparse), "full");
  EXPECT_EQ(describe_policy(policies[1].sparse),
            "xattention+quest, topk 512, page 16, coverage 0.8, stride 16, tail 0");
  EXPECT_EQ(describe_policy(policies[2].sparse), "sampled+quest, page 16, probe rows 8, tail 0");
  EXPECT_EQ(describe_policy(policies[3].sparse), "avgpool+full, tail 0");
  EXPECT_EQ(policies[1].name, "aggressive");
  EXPECT_EQ(policy_lines(policies),
            (std::vector<std::string>{
                "aggressive: xattention+quest, topk 512, page 16, coverage 0.8, stride 16, tail 0",
                "sampled+quest, page 16, probe rows 8, tail 0", "avgpool+full, tail 0"}))
      << "full says all";
}

TEST(PolicyList, RefusesWhatNoPolicyUsesAndWhatContradicts) {
  SparseOptions common;
  EXPECT_NE(refusal({"full", "no-such"}, common).find("no-such"), std::string::npos);
  EXPECT_NE(refusal({"full", "quest"}, common).find("full+quest"), std::string::npos);
  EXPECT_NE(refusal({"full", "full"}, common).find("twice"), std::string::npos);
  common.stride = 8;
  EXPECT_NE(refusal({"full", "sampled+quest"}, common)
                .find("--sparse-stride is given, but none of the policies uses it: full, sampled"),
            std::string::npos);
  EXPECT_NE(refusal({"aggressive"}, common).find("--sparse-stride is 8"), std::string::npos);
  EXPECT_EQ(refusal({"xattention+quest", "sampled+quest"}, common), "");
}

}  // namespace
}  // namespace sluice::cli
