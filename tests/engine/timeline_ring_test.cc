// The ring keeps the newest spans and names their streams.
#include "engine/timeline_ring.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::vector<TraceSpan> spans_from(int64_t begin_ns, int count) {
  std::vector<TraceSpan> spans;
  for (int i = 0; i < count; ++i) {
    spans.push_back({"op", begin_ns + 10 * i, begin_ns + 10 * i + 5});
  }
  return spans;
}

TEST(TimelineRing, GivesTheSpansThatEndedLast) {
  TimelineRing ring;
  EXPECT_TRUE(ring.newest(1000).empty());
  ring.take("slot 0", spans_from(0, 10));   // ends at 95
  ring.take("compute", spans_from(50, 3));  // ends at 75
  const auto rows = ring.newest(30);        // after 65
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].stream_name, "compute");
  ASSERT_EQ(rows[0].spans.size(), 1U);
  EXPECT_EQ(rows[0].spans[0].end_ns, 75);
  ASSERT_EQ(rows[1].spans.size(), 3U);
  EXPECT_EQ(rows[1].spans[0].end_ns, 75);
  EXPECT_EQ(rows[1].spans[2].end_ns, 95);
  EXPECT_EQ(ring.newest(1).size(), 1U) << "a stream without spans in that time is no row";
}

TEST(TimelineRing, OverwritesTheOldestSpans) {
  constexpr size_t kEntryBytes = 32;
  TimelineRing ring(4 * kEntryBytes);
  ring.take("compute", spans_from(0, 6));
  const auto rows = ring.newest(1'000'000);
  ASSERT_EQ(rows.size(), 1U);
  ASSERT_EQ(rows[0].spans.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[0].spans[i].begin_ns, 10 * static_cast<int64_t>(i + 2));
  }
}

}  // namespace
}  // namespace sluice
