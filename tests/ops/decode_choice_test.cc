// Which decode attention kernel computes which shapes. Needs no GPU: the choice is a pure function.
//
// A wrong choice changes no bit of a result, so no other test would reveal it; only time would.
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include "ops/cuda/attention/decode/choice.h"

namespace sluice::cuda {

void PrintTo(DecodeKernel kernel, std::ostream* out) {
  constexpr const char* kNames[] = {"wave", "listed", "windows", "general"};
  *out << kNames[static_cast<int>(kernel)];
}

namespace {

constexpr DecodeGpu kHopper{.shared_bytes = 227 * 1024, .num_multiprocessors = 132};
constexpr DecodeGpu kAmpere{.shared_bytes = 163 * 1024, .num_multiprocessors = 108};

// A step of a shape with 8 KV heads of 128 channels, two query heads each.
DecodeRound step(int32_t num_seqs, int32_t num_tokens) {
  return {.head_dim = 128,
          .group = 2,
          .num_kv_heads = 8,
          .window_tokens = kMaxWindowTokens,
          .num_seqs = num_seqs,
          .num_windows = (num_tokens + kMaxWindowTokens - 1) / kMaxWindowTokens,
          .max_windows = 1 << 15};
}

DecodeKernel kernel_of(const DecodeRound& round, const DecodeGpu& gpu = kHopper) {
  return choose_decode_kernel(round, gpu).kernel;
}

TEST(DecodeChoice, AWaveTakesSomeWindowsForEachMultiprocessorButNotMany) {
  EXPECT_EQ(kernel_of(step(1, 2048)), DecodeKernel::kWindows) << "64 windows, 66 are half";
  EXPECT_EQ(kernel_of(step(1, 2304)), DecodeKernel::kWave) << "72 windows";
  EXPECT_EQ(kernel_of(step(1, 16 * 1024)), DecodeKernel::kWave) << "512 windows of 528";
  EXPECT_EQ(kernel_of(step(1, 17 * 1024)), DecodeKernel::kWindows) << "544 windows of 528";
  EXPECT_EQ(kernel_of(step(32, 512)), DecodeKernel::kWave);
  EXPECT_EQ(kernel_of(step(33, 256)), DecodeKernel::kWindows) << "more than 32 sequences";
  DecodeRound round = step(1, 8192);
  round.group = 9;
  EXPECT_EQ(kernel_of(round), DecodeKernel::kWindows) << "more than 8 query heads";
}

// KV in e4m3 has no kernel for a wave, nor for dealt lists; the bits are the same.
TEST(DecodeChoice, Fp8TakesWindowsOrTheGeneralKernel) {
  for (const int32_t num_tokens : {1, 2304, 8192, 1 << 20}) {
    DecodeRound round = step(1, num_tokens);
    round.is_coded = true;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kWindows) << num_tokens;
    EXPECT_FALSE(deals_listed_windows(round, {.page_tokens = 64, .max_pages = 16}));
    round.head_dim = 80;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kGeneral) << num_tokens;
  }
}

// With zones of keys there is no wave; long lists are dealt as without.
TEST(DecodeChoice, ZonesTakeEveryKernelButTheWave) {
  for (const int32_t num_tokens : {1, 2304, 8192, 1 << 20}) {
    DecodeRound round = step(1, num_tokens);
    round.has_zones = true;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kWindows) << num_tokens;
    const bool is_long = num_tokens >= 128 * 1024;
    EXPECT_EQ(deals_listed_windows(round, {.page_tokens = 64, .max_pages = 16}), is_long);
    round.head_dim = 80;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kGeneral) << num_tokens;
  }
}

// GPUs before Hopper do not have the shared memory of the wave.
TEST(DecodeChoice, AmpereComputesEachWindowByItself) {
  for (const int32_t num_tokens : {1, 2048, 8192, 128 * 1024}) {
    EXPECT_EQ(kernel_of(step(1, num_tokens), kAmpere), DecodeKernel::kWindows) << num_tokens;
  }
}

// A part of a call that is computed in several rounds carries state between them.
TEST(DecodeChoice, SeveralRoundsAndListsAndSmallBlocksExcludeTheWave) {
  for (const int32_t num_tokens : {2304, 8192}) {
    DecodeRound round = step(1, num_tokens);
    round.is_only = false;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kWindows) << num_tokens;
    round = step(1, num_tokens);
    round.has_lists = true;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kWindows) << num_tokens;
    round.deals_listed = true;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kListed) << num_tokens;
    round = step(1, num_tokens);
    round.window_tokens = 64;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kWindows) << num_tokens;
  }
}

TEST(DecodeChoice, OtherHeadSizesTakeTheGeneralKernel) {
  for (const int32_t head_dim : {16, 80, 96, 112, 192}) {
    DecodeRound round = step(1, 2048);
    round.head_dim = head_dim;
    EXPECT_EQ(kernel_of(round), DecodeKernel::kGeneral) << head_dim;
    EXPECT_EQ(choose_decode_kernel(round, kHopper).records, 1) << head_dim;
  }
}

TEST(DecodeChoice, HalvesAreForFewWindowsThatTheScratchHolds) {
  const auto records_of = [](const DecodeRound& round) {
    return choose_decode_kernel(round, kAmpere).records;
  };
  EXPECT_EQ(records_of(step(1, 6912)), 2) << "27 windows x 8 heads, 216 are two of each";
  EXPECT_EQ(records_of(step(1, 7168)), 1) << "28 windows x 8 heads";
  DecodeRound round = step(1, 6912);
  round.max_windows = 53;
  EXPECT_EQ(records_of(round), 1) << "54 halves";
  round = step(1, 33 * kMaxWindowTokens);
  round.num_kv_heads = 1;
  EXPECT_EQ(records_of(round), 1) << "the fold of few windows ends at 32";
  round = step(1, 1024);
  round.has_lists = round.deals_listed = true;
  EXPECT_EQ(records_of(round), 1) << "listed windows are whole";
}

TEST(DecodeChoice, ListedWindowsAreDealtWhereListsLeaveMostOut) {
  const DecodeRound call = step(1, 128 * 1024);
  const DecodeLists lists{.page_tokens = 32, .max_pages = 1024};  // a quarter of the tokens
  EXPECT_TRUE(deals_listed_windows(call, lists));
  EXPECT_FALSE(deals_listed_windows(call, {})) << "no lists";
  EXPECT_FALSE(deals_listed_windows(call, {.page_tokens = 32, .max_pages = 1025}));
  EXPECT_FALSE(deals_listed_windows(call, {.page_tokens = 48, .max_pages = 64}))
      << "a page crosses windows";
  EXPECT_FALSE(deals_listed_windows(call, {.page_tokens = 32, .max_pages = 64, .is_whole = false}));
  EXPECT_FALSE(deals_listed_windows(step(1, 128 * 1024 - 256), lists)) << "511 windows";
  DecodeRound other = call;
  other.group = 9;
  EXPECT_FALSE(deals_listed_windows(other, lists));
  other = call;
  other.head_dim = 96;
  EXPECT_FALSE(deals_listed_windows(other, lists));
  other = call;
  other.window_tokens = 128;
  EXPECT_FALSE(deals_listed_windows(other, lists));
}

}  // namespace
}  // namespace sluice::cuda
