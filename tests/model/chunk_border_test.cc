// Where tiles of rows of models with states end: never inside a chunk that one call could compute.
#include <vector>

#include <gtest/gtest.h>

#include "model/layers/delta_net.h"

namespace sluice {
namespace {

TEST(ChunkBorder, ATileEndsWhereItsSequenceDoesOrAtAMultipleOfTheChunk) {
  // Rows [0, 100) at positions from 0 on, [100, 400) from 30 on, [400, 500) from 64 on.
  const std::vector<PrefillSpan> spans{{.first_pos = 0, .num_rows = 100},
                                       {.first_pos = 30, .num_rows = 300},
                                       {.first_pos = 64, .num_rows = 100}};
  EXPECT_EQ(chunk_border(spans, 0, 64), 64);
  EXPECT_EQ(chunk_border(spans, 0, 99), 64);
  EXPECT_EQ(chunk_border(spans, 0, 100), 100) << "the second sequence begins";
  EXPECT_EQ(chunk_border(spans, 0, 134), 134) << "position 64";
  EXPECT_EQ(chunk_border(spans, 0, 200), 198) << "position 128";
  EXPECT_EQ(chunk_border(spans, 0, 256), 198);
  EXPECT_EQ(chunk_border(spans, 0, 400), 400);
  EXPECT_EQ(chunk_border(spans, 64, 463), 400);
  EXPECT_EQ(chunk_border(spans, 64, 464), 464);
}

TEST(ChunkBorder, AShortTileIsLeftAsItIs) {
  const std::vector<PrefillSpan> spans{{.first_pos = 30, .num_rows = 300}};
  EXPECT_EQ(chunk_border(spans, 0, 20), 20) << "these rows are in no whole chunk";
  EXPECT_EQ(chunk_border(spans, 98, 120), 120) << "shorter than a chunk";
  EXPECT_EQ(chunk_border({}, 0, 7), 7) << "a pass that is no prefill";
}

}  // namespace
}  // namespace sluice
