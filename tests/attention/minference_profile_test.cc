// minference with a profile of heads, and with an adaptive budget: tiles and columns of every layer
// and KV head are those of the double-precision references with the sizes that the profile means.
//
// Reveals: sizes of the wrong layer or head, heads that count in scores of another kind, unions
// that lose a part.
#include <filesystem>
#include <fstream>

#include "attention/column_check.h"
#include "attention/policies/minference.h"
#include "core/error.h"

namespace sluice {
namespace {

using testing::bare;
using testing::columns_at;
using testing::kTilePromptTokens;
using testing::largest;
using testing::mixed_profile;
using testing::PolicyRig;
using testing::Span;

// A profile of the rig's two layers of four heads in a file of its own.
class ProfileFile {
 public:
  explicit ProfileFile(const std::string& text, const std::string& name = "")
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("minference_profile_test" + name + ".json")) {
    std::ofstream(path_) << text;
  }
  ~ProfileFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct Case {
  std::string profile;            // of the rig's heads
  std::string of_all_ranks = {};  // of all heads of a model, of which the rig has a share
  HeadShare share = {};
  int32_t num_tokens = kTilePromptTokens;
  int32_t segment_tokens = 256;
  bool shared_list = false;
  int32_t num_tiles() const { return static_cast<int32_t>(mask_tiles_of(num_tokens)); }
  int32_t num_segments() const { return (num_tokens + segment_tokens - 1) / segment_tokens; }
};

SparseOptions options_of(const Case& test) {
  SparseOptions options;
  options.profile = test.of_all_ranks.empty() ? test.profile : test.of_all_ranks;
  options.segment_tokens = test.segment_tokens;
  options.shared_list = test.shared_list;
  return bare(options);
}

// What one list of a layer is to select.
class ExpectedLists {
 public:
  ExpectedLists(const Case& test, PolicyRig& rig, const HeadProfile& profile, int32_t layer,
                std::vector<int32_t> heads)
      : test_(test), profile_(profile), layer_(layer), heads_(std::move(heads)) {
    const Span prompt{0, 0, test.num_tokens};
    lines_ = reference::line_scores(rig.rows_and_keys(prompt, {}, layer), test.segment_tokens, 64,
                                    PolicyRig::kQueryHeads);
    add_tiles(rig.rows_and_keys(prompt, {.kind = TileProbeKind::kPooled}, layer));
  }

  std::vector<int32_t> columns(int32_t segment) const {
    const int32_t end = std::min((segment + 1) * test_.segment_tokens, test_.num_tokens);
    const std::vector<double> sums = sum_of(lines_.verticals, segment);
    return largest(sums.data(), 0, end, most(&ProfiledHead::num_verticals));
  }

  std::vector<bool> tiles(int32_t q_tile) const {
    const int32_t segment = q_tile * kMaskTileTokens / test_.segment_tokens;
    const int32_t end = std::min((segment + 1) * test_.segment_tokens, test_.num_tokens);
    const int64_t budget = mask_tiles_of(most(&ProfiledHead::num_slashes));
    const std::vector<double> sums = sum_of(lines_.diagonals, segment);
    const std::vector<int32_t> chosen = largest(sums.data(), 2, test_.num_tiles(), budget - 2);
    std::vector<bool> result;
    for (int32_t j = 0; j <= q_tile; ++j) {
      const int32_t d = q_tile - j;
      result.push_back(budget >= mask_tiles_of(end) || d < 2 || in_stream(q_tile, j) ||
                       std::binary_search(chosen.begin(), chosen.end(), d) || is_heavy(q_tile, j));
    }
    return result;
  }

 private:
  const ProfiledHead& pattern(int32_t head) const { return profile_.at(layer_, head); }

  std::vector<int32_t> of_kind(HeadKind kind) const {
    std::vector<int32_t> result;
    for (const int32_t head : heads_) {
      if (pattern(head).kind == kind) result.push_back(head);
    }
    return result;
  }

  int64_t most(int32_t ProfiledHead::*size) const {
    int32_t result = 0;
    for (const int32_t head : of_kind(HeadKind::kVerticalSlash)) {
      result = std::max(result, pattern(head).*size);
    }
    return result;
  }

  // Of a segment, over the heads that attend by lines. `sums` are by query head.
  std::vector<double> sum_of(const std::vector<double>& sums, int32_t segment) const {
    const size_t width = sums.size() / PolicyRig::kQueryHeads / size_t(test_.num_segments());
    std::vector<double> result(width);
    for (const int32_t head : of_kind(HeadKind::kVerticalSlash)) {
      const size_t first = (size_t(head) * size_t(test_.num_segments()) + size_t(segment)) * width;
      for (size_t i = 0; i < width; ++i) result[i] += sums[first + i];
    }
    return result;
  }

  bool in_stream(int32_t q_tile, int32_t kv_tile) const {
    for (const int32_t head : of_kind(HeadKind::kStream)) {
      const int32_t first = kv_tile * kMaskTileTokens;
      if (first < pattern(head).num_verticals) return true;
      if (first + kMaskTileTokens > q_tile * kMaskTileTokens - pattern(head).num_slashes) {
        return true;
      }
    }
    return false;
  }

  // The mask of avgpool with 50 tiles over the heads that attend by tiles.
  void add_tiles(const ScoreTilesArgs& args) {
    const std::vector<int32_t> heads = of_kind(HeadKind::kBlockSparse);
    if (heads.empty()) return;
    const std::vector<double> all = reference::score_tiles(args);
    const auto of_head = static_cast<std::ptrdiff_t>(all.size()) / PolicyRig::kQueryHeads;
    std::vector<double> records;
    for (const int32_t head : heads) {
      records.insert(records.end(), all.begin() + head * of_head,
                     all.begin() + (head + 1) * of_head);
    }
    TileRule rule = testing::bare_rule(TileChoice::kTop);
    rule.top_tiles = 50;
    heavy_ = reference::mask_words(records,
                                   {.num_q_heads = static_cast<int32_t>(heads.size()),
                                    .num_kv_heads = 1,
                                    .num_q_tiles = test_.num_tiles(),
                                    .probes_per_tile = 1,
                                    .num_kv_tiles = test_.num_tiles()},
                                   rule, 0, test_.num_tokens);
  }
  bool is_heavy(int32_t q_tile, int32_t kv_tile) const {
    if (heavy_.empty()) return false;
    const int32_t word = q_tile * ((test_.num_tiles() + 31) / 32) + kv_tile / 32;
    return (static_cast<uint32_t>(heavy_[static_cast<size_t>(word)]) >> (kv_tile % 32) & 1) != 0;
  }

  const Case& test_;
  const HeadProfile& profile_;
  int32_t layer_;
  std::vector<int32_t> heads_;
  reference::LineScores lines_;  // by query head
  std::vector<int32_t> heavy_;   // words of all query tiles
};

std::vector<bool> tiles_of(const TileMask& mask, int32_t list, int32_t q_tile) {
  const int64_t entry = list * mask.bits.dim(2) + q_tile;
  const int32_t* words = mask.bits.data<int32_t>() + entry * mask.bits.dim(3);
  std::vector<bool> result;
  for (int32_t j = 0; j <= q_tile; ++j) result.push_back((words[j / 32] >> (j % 32) & 1) != 0);
  return result;
}

// Compares every layer, list, segment and query tile; returns the tiles set in them.
int64_t expect_selected(const Case& test) {
  PolicyRig rig(make_policies("minference+full", options_of(test)), kMaskTileTokens,
                std::max(PolicyRig::kMaxTokens, test.num_tiles() * kMaskTileTokens), test.share);
  const Span prompt{0, 0, test.num_tokens};
  rig.run(Phase::kPrefill, {prompt});
  int64_t num_counted = 0, num_set = 0;
  for (const TileCounts& counts : rig.policies().of(Phase::kPrefill).tile_scorer()->tile_counts()) {
    num_counted += counts.num_set;
  }
  const HeadProfile profile = read_head_profile(test.profile);
  const int32_t num_lists = test.shared_list ? 1 : PolicyRig::kKvHeads;
  for (int32_t layer = 0; layer < PolicyRig::kLayers; ++layer) {
    const Selection selection = rig.select(Phase::kPrefill, {prompt}, layer);
    for (int32_t list = 0; list < num_lists; ++list) {
      SCOPED_TRACE("layer " + std::to_string(layer) + " list " + std::to_string(list));
      std::vector<int32_t> heads;
      for (int32_t i = 0; i < PolicyRig::kQueryHeads / num_lists; ++i) {
        heads.push_back(list * (PolicyRig::kQueryHeads / num_lists) + i);
      }
      const ExpectedLists expected(test, rig, profile, layer, heads);
      for (int32_t segment = 0; segment < test.num_segments(); ++segment) {
        EXPECT_EQ(columns_at(masked_in(selection)->columns, list, segment),
                  expected.columns(segment));
      }
      for (int32_t q_tile = 0; q_tile < test.num_tiles(); ++q_tile) {
        const std::vector<bool> tiles = tiles_of(masked_in(selection)->mask, list, q_tile);
        EXPECT_EQ(tiles, expected.tiles(q_tile)) << "query tile " << q_tile;
        num_set += std::count(tiles.begin(), tiles.end(), true);
      }
    }
  }
  EXPECT_EQ(num_counted, num_set) << "what is counted";
  return num_set;
}

// KV heads with lines of both sizes, with windows alone, and with two kinds of heads.
TEST(MInferenceProfile, SelectsWhatEachHeadNeeds) {
  expect_selected({.profile = mixed_profile()});
  expect_selected({.profile = mixed_profile(), .shared_list = true});
  expect_selected({.profile = mixed_profile(), .segment_tokens = 512});
}

TEST(MInferenceProfile, VerticalsAndSlashesAlone) {
  const ProfileFile file(
      R"([{"0": ["vertical_and_slash", 10, 384, 1], "1": ["vertical_and_slash", 0, 0, 1],
           "2": ["vertical_and_slash", 200, 0, 1], "3": ["vertical_and_slash", 1, 128, 1]},
          {"0": ["vertical_and_slash", 0, 500, 1], "1": ["vertical_and_slash", 0, 129, 1],
           "2": ["vertical_and_slash", 128, 256, 1], "3": ["vertical_and_slash", 129, 5000, 1]}])");
  expect_selected({.profile = file.path()});
}

TEST(MInferenceProfile, WindowsAlone) {
  const ProfileFile file(
      R"([{"0": ["stream_llm", 0, 0, 1], "1": ["stream_llm", 1, 1, 1],
           "2": ["stream_llm", 128, 128, 1], "3": ["stream_llm", 129, 129, 1]},
          {"0": ["stream_llm", 300, 0, 1], "1": ["stream_llm", 0, 300, 1],
           "2": ["stream_llm", 0, 127, 1], "3": ["stream_llm", 0, 2000, 1]}])");
  expect_selected({.profile = file.path()});
}

// More tiles than the 50 that a head of this kind takes.
TEST(MInferenceProfile, TheHeaviestTilesOfPools) {
  const ProfileFile file(
      R"([{"0": ["block_sparse", 100, 800, 1], "1": ["vertical_and_slash", 40, 900, 1],
           "2": ["block_sparse", 100, 800, 1], "3": ["block_sparse", 100, 800, 1]},
          {"0": ["stream_llm", 129, 256, 1], "1": ["block_sparse", 1000, 6096, 1],
           "2": ["vertical_and_slash", 100, 256, 1], "3": ["vertical_and_slash", 10, 2000, 1]}])");
  const Case test{
      .profile = file.path(), .num_tokens = 58 * kMaskTileTokens - 20, .segment_tokens = 2048};
  const int64_t all = int64_t{PolicyRig::kLayers} * PolicyRig::kKvHeads * 58 * 59 / 2;
  const int64_t num_set = expect_selected(test);
  EXPECT_LT(num_set, all * 9 / 10);
  EXPECT_GT(num_set, all / 2);
}

// A rank selects for its heads of the model's profile what they would select without the others:
// every layer and rank has other kinds and sizes.
TEST(MInferenceProfile, ARankHasItsOwnHeads) {
  const std::vector<std::vector<std::string>> heads = {
      {R"(["vertical_and_slash", 10, 384, 1])", R"(["stream_llm", 129, 129, 1])",
       R"(["block_sparse", 100, 800, 1])", R"(["vertical_and_slash", 1, 128, 1])",
       R"(["stream_llm", 300, 0, 1])", R"(["stream_llm", 1, 1, 1])",
       R"(["vertical_and_slash", 200, 0, 1])", R"(["vertical_and_slash", 40, 256, 1])"},
      {R"(["vertical_and_slash", 0, 500, 1])", R"(["vertical_and_slash", 64, 129, 1])",
       R"(["stream_llm", 128, 128, 1])", R"(["stream_llm", 0, 300, 1])",
       R"(["vertical_and_slash", 129, 256, 1])", R"(["block_sparse", 100, 800, 1])",
       R"(["vertical_and_slash", 20, 128, 1])", R"(["stream_llm", 0, 127, 1])"}};
  const auto text_of = [&](size_t first, size_t count) {
    std::string text;
    for (const auto& layer : heads) {
      std::string list;
      for (size_t i = 0; i < count; ++i) {
        list += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\": " + layer[first + i];
      }
      text += (text.empty() ? "[{" : ", {") + list + "}";
    }
    return text + "]";
  };
  const ProfileFile all(text_of(0, 8), "_all");
  std::vector<int64_t> num_set;
  for (const int32_t rank : {0, 1}) {
    const ProfileFile part(text_of(static_cast<size_t>(rank) * 4, 4));
    num_set.push_back(expect_selected({.profile = part.path(),
                                       .of_all_ranks = all.path(),
                                       .share = {.rank = rank, .num_ranks = 2}}));
  }
  EXPECT_NE(num_set[0], num_set[1]);
}

TEST(MInferenceProfile, WhatEveryTilePolicyHas) {
  const SparseOptions options = options_of({.profile = mixed_profile()});
  testing::expect_column_cuts_change_nothing("minference", options);
  testing::expect_dense_where_asked("minference", options);
  testing::expect_planned_memory("minference", options);
}

TEST(MInferenceProfile, MustBeOfTheModel) {
  const ProfileFile file(R"([{"0": ["vertical_and_slash", 10, 384, 1]}])");
  const auto policies = make_policies("minference+full", options_of({.profile = file.path()}));
  try {
    policies->memory(PolicyRig::layout(kMaskTileTokens), 8, PolicyRig::limits());
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("has 2 of 4"), std::string::npos) << error.what();
  }
}

// ---- Shares of the keys ------------------------------------------------------------------------

// The columns and diagonals of a segment are those of the numbers that the share means there.
TEST(MInferenceAdaptive, SizesFollowTheKeysOfTheSegment) {
  constexpr double kShare = 0.4;
  constexpr int32_t kAdaptiveSegment = 256;
  PolicyRig rig(make_policies("minference+full", bare({.segment_tokens = kAdaptiveSegment,
                                                       .adaptive_budget = kShare})),
                kMaskTileTokens);
  const Span prompt{0, 0, kTilePromptTokens};
  rig.run(Phase::kPrefill, {prompt});
  const Selection selection = rig.select(Phase::kPrefill, {prompt});
  const reference::LineScores sums = reference::line_scores(
      rig.rows_and_keys(prompt, {}), kAdaptiveSegment, 64, PolicyRig::kKvHeads);
  for (int32_t list = 0; list < PolicyRig::kKvHeads; ++list) {
    for (int32_t segment = 0; segment < 4; ++segment) {
      const int32_t end = std::min((segment + 1) * kAdaptiveSegment, kTilePromptTokens);
      const auto verticals = static_cast<int64_t>(std::ceil(0.2 * kShare * end - 1e-6));
      const double* first = sums.verticals.data() + (list * 4 + segment) * kTilePromptTokens;
      EXPECT_EQ(columns_at(masked_in(selection)->columns, list, segment),
                largest(first, 0, end, verticals));
      // 82, 164, 246 and 288 offsets: 1, 2, 2 and 3 diagonals.
      const auto slashes = static_cast<int64_t>(std::ceil(0.8 * kShare * end - 1e-6));
      const std::vector<int32_t> chosen = largest(sums.diagonals.data() + (list * 4 + segment) * 8,
                                                  2, 8, mask_tiles_of(slashes) - 2);
      const int32_t q_tile = static_cast<int32_t>(mask_tiles_of(end)) - 1;
      const std::vector<bool> tiles = tiles_of(masked_in(selection)->mask, list, q_tile);
      for (int32_t j = 0; j <= q_tile; ++j) {
        const bool is_chosen = std::binary_search(chosen.begin(), chosen.end(), q_tile - j);
        EXPECT_EQ(tiles[static_cast<size_t>(j)], q_tile - j < 2 || is_chosen) << q_tile << " " << j;
      }
    }
  }
}

TEST(MInferenceAdaptive, WhatEveryTilePolicyHas) {
  const SparseOptions options = bare({.segment_tokens = 256, .adaptive_budget = 0.3});
  testing::expect_column_cuts_change_nothing("minference", options);
  testing::expect_counts("minference", options);
  testing::expect_planned_memory("minference", options);
}

// Room for a fifth of the keys, not for a billion columns.
TEST(MInferenceAdaptive, TakesMemoryForItsColumnsAlone) {
  const KvLayout layout = PolicyRig::layout(kMaskTileTokens);
  const auto bytes = [&](const SparseOptions& options) {
    return make_policies("minference+full", options)
        ->memory(layout, 8, PolicyRig::limits())
        .list_bytes;
  };
  EXPECT_EQ(bytes({.segment_tokens = 256, .adaptive_budget = 1}),
            bytes({.segment_tokens = 256, .vertical_tokens = 205}));
}

}  // namespace
}  // namespace sluice
