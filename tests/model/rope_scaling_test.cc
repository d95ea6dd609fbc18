// Rotary frequencies against double-precision golden values, and errors for invalid descriptions of
// them.
//
// The golden values come from the papers' formulas (make_rope_golden.py). The float32 functions of
// transformers 5.23.0 agree with them to a relative 8e-7.
#include "model/rope_scaling.h"

#include <cmath>

#include <gtest/gtest.h>

#include "io/expect_error.h"
#include "io/json_type.h"
#include "model/rope_golden.h"

namespace sluice {
namespace {

constexpr int64_t kMaxPositions = 32768;

struct Parsed {
  RopeConfig rope;
  std::vector<std::string> warnings;
};

// Reads the rope description of a configuration with these keys.
Parsed read_rope(const std::string& keys) {
  const nlohmann::json document = parse_json("{" + keys + "}", "config.json");
  Parsed parsed;
  parsed.rope = read_rope_config(JsonObject(document, "config.json"), kMaxPositions,
                                 RopeForm::kWhole, parsed.warnings);
  return parsed;
}

std::string rope_error(ErrorCode code, const std::string& keys) {
  return expect_error(code, [&] { read_rope(keys); });
}

TEST(RopeFrequencies, MatchGoldenValues) {
  ASSERT_EQ(kRopeGolden.size(), 10u);
  for (const RopeGolden& golden : kRopeGolden) {
    const Parsed parsed = read_rope(golden.keys);
    const RopeFrequencies found = rope_frequencies(parsed.rope, golden.head_dim);
    ASSERT_EQ(found.inv_freq.size(), golden.inv_freq.size()) << golden.name;
    EXPECT_FLOAT_EQ(found.attention_factor, static_cast<float>(golden.attention_factor));
    for (size_t i = 0; i < golden.inv_freq.size(); ++i) {
      // pow, two divisions and a blend in float: a few roundings of 6e-8 each.
      EXPECT_NEAR(found.inv_freq[i] / golden.inv_freq[i], 1.0, 1e-6) << golden.name << " " << i;
    }
  }
}

TEST(RopeConfig, DefaultsWithoutKeys) {
  const Parsed parsed = read_rope("");
  EXPECT_EQ(parsed.rope.type, RopeType::kDefault);
  EXPECT_EQ(parsed.rope.theta, 10000.0);
  EXPECT_TRUE(parsed.warnings.empty());
  for (const char* keys : {R"("rope_scaling": null)", R"("rope_parameters": null)",
                           R"("rope_scaling": {"rope_type": "default"})",
                           R"("rope_parameters": {"rope_type": "default", "rope_theta": 1e4})"}) {
    EXPECT_EQ(read_rope(keys).rope.type, RopeType::kDefault) << keys;
  }
}

TEST(RopeConfig, FollowsTransformersPrecedence) {
  // rope_scaling has precedence over rope_parameters unless it is empty, theta inside over theta
  // outside.
  EXPECT_EQ(read_rope(R"("rope_scaling": {"type": "linear", "factor": 2},
                    "rope_parameters": {"rope_type": "yarn", "factor": 4})")
                .rope.type,
            RopeType::kLinear);
  EXPECT_EQ(read_rope(R"("rope_scaling": {},
                    "rope_parameters": {"rope_type": "yarn", "factor": 4})")
                .rope.type,
            RopeType::kYarn);
  EXPECT_EQ(read_rope(R"("rope_theta": 5, "rope_parameters": {"rope_theta": 7})").rope.theta, 7.0);
  EXPECT_EQ(read_rope(R"("rope_theta": 5, "rope_parameters": {"rope_type": "default"})").rope.theta,
            5.0);
  EXPECT_EQ(read_rope(R"("rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2})")
                .rope.type,
            RopeType::kLinear);
}

TEST(RopeConfig, FindsTheOriginalLength) {
  const std::string yarn = R"("rope_parameters": {"rope_type": "yarn", "factor": 4)";
  EXPECT_EQ(read_rope(yarn + "}").rope.original_max_positions, kMaxPositions);
  EXPECT_EQ(read_rope(yarn + R"(, "original_max_position_embeddings": 4096})")
                .rope.original_max_positions,
            4096);
  EXPECT_EQ(read_rope(R"("original_max_position_embeddings": 2048, )" + yarn +
                      R"(, "original_max_position_embeddings": 4096})")
                .rope.original_max_positions,
            2048);
}

TEST(RopeConfig, DerivesYarnsFactorFromTheLengths) {
  EXPECT_EQ(read_rope(R"("rope_parameters": {"rope_type": "yarn", "factor": null,
                    "original_max_position_embeddings": 4096})")
                .rope.factor,
            8.0);
  EXPECT_TRUE(contains(rope_error(ErrorCode::kModel, R"("rope_parameters": {"rope_type": "yarn"})"),
                       "factor is missing; it must be given"));
}

TEST(RopeConfig, NamesKeysThatItIgnores) {
  const Parsed parsed =
      read_rope(R"("rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 3})");
  ASSERT_EQ(parsed.warnings.size(), 1u);
  EXPECT_EQ(
      parsed.warnings[0],
      "config.json: rope_scaling: \"beta_fast\" means nothing for type linear and is ignored");
}

// Each setting is at two places; with equal values nothing is said.
TEST(RopeConfig, NamesSettingsWithTwoValues) {
  struct Case {
    std::string keys;  // with %, for which the values stand
    std::string equal, different, warning;
  };
  for (const Case& c : std::vector<Case>{
           {R"("rope_theta": 5, "rope_parameters": {"rope_theta": %})", "5.0", "7",
            "config.json: rope_parameters: rope_theta is 7, but rope_theta of config.json is 5"},
           {R"("rope_scaling": {"rope_type": "linear", "type": "%", "factor": 2})", "linear",
            "yarn", "rope_type is \"linear\", but type of config.json: rope_scaling is \"yarn\""},
           {R"("original_max_position_embeddings": 2048, "rope_scaling": {"rope_type": "yarn",
               "factor": 2, "original_max_position_embeddings": %})",
            "2048", "4096",
            "config.json: original_max_position_embeddings is 2048, but "
            "original_max_position_embeddings of config.json: rope_scaling is 4096"},
           {R"("rope_scaling": {"rope_type": "linear", "factor": 2},
               "rope_parameters": {"rope_type": "linear", "factor": %, "rope_theta": 3})",
            "2", "4", "config.json: rope_scaling and rope_parameters differ in \"factor\""}}) {
    const size_t at = c.keys.find('%');
    const auto keys = [&](const std::string& value) {
      return std::string(c.keys).replace(at, 1, value);
    };
    EXPECT_TRUE(read_rope(keys(c.equal)).warnings.empty()) << keys(c.equal);
    const std::vector<std::string> warnings = read_rope(keys(c.different)).warnings;
    ASSERT_EQ(warnings.size(), 1u) << keys(c.different);
    EXPECT_TRUE(contains(warnings[0], c.warning));
    EXPECT_TRUE(contains(warnings[0], "; the former is used"));
  }
}

TEST(RopeConfig, RefusesTypesThatItDoesNotKnow) {
  for (const std::string type : {"dynamic", "longrope", "su", "mrope", "Yarn", ""}) {
    EXPECT_TRUE(contains(rope_error(ErrorCode::kUnsupported,
                                    R"("rope_scaling": {"factor": 2, "type": ")" + type + "\"}"),
                         "config.json: rope_scaling: type \"" + type +
                             "\" is not supported; default, linear, llama3 and yarn are"));
  }
  EXPECT_TRUE(
      contains(rope_error(ErrorCode::kUnsupported, R"("rope_parameters": {"full_attention": {}})"),
               "parameters per layer type (\"full_attention\") are not supported"));
  for (const char* keys : {R"("partial_rotary_factor": 0.5)",
                           R"("rope_parameters": {"partial_rotary_factor": 0.5})"}) {
    EXPECT_TRUE(contains(rope_error(ErrorCode::kUnsupported, keys), "partial_rotary_factor 0.5"));
  }
}

TEST(RopeConfig, RefusesMissingAndImpossibleValues) {
  const std::string llama3 =
      R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": )";
  for (const std::string& keys : std::vector<std::string>{
           R"("rope_theta": 0)", R"("rope_theta": 1)", R"("rope_theta": -5)",
           R"("rope_theta": "x")", R"("rope_scaling": 3)", R"("rope_scaling": {"type": 3})",
           R"("rope_scaling": {"type": "linear"})",
           R"("rope_scaling": {"type": "linear", "factor": 0})",
           R"("rope_scaling": {"type": "linear", "factor": 0.5})",
           R"("rope_scaling": {"type": "linear", "factor": 1e300})", llama3 + "1}",
           llama3 + R"(4, "high_freq_factor": 4})", llama3 + R"(0, "high_freq_factor": 4})",
           llama3 + R"(1, "high_freq_factor": 4, "original_max_position_embeddings": 0})",
           R"("rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 1, "beta_slow": 2})",
           R"("rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": -1})",
           R"("rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 0})",
           R"("rope_scaling": {"type": "yarn", "factor": 4, "truncate": 1})",
           R"("rope_scaling": {"type": "yarn", "original_max_position_embeddings": 65536})"}) {
    EXPECT_TRUE(contains(rope_error(ErrorCode::kModel, keys), "it must be")) << keys;
  }
}

TEST(RopeFrequencies, StayFiniteAtTheEdgesOfTheRanges) {
  for (const char* keys :
       {R"("rope_theta": 1e18)", R"("rope_theta": 1.00001)",
        R"("rope_scaling": {"type": "yarn", "factor": 1e6, "original_max_position_embeddings": 1})",
        R"("rope_theta": 1.00001, "rope_scaling": {"type": "yarn", "factor": 2})",
        R"("rope_theta": 1e18, "rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1e6})"}) {
    const RopeFrequencies frequencies = rope_frequencies(read_rope(keys).rope, 256);
    for (float value : frequencies.inv_freq) EXPECT_TRUE(std::isfinite(value) && value > 0) << keys;
    EXPECT_TRUE(std::isfinite(frequencies.attention_factor));
  }
}

}  // namespace
}  // namespace sluice
