// Streams give their spans in bunches, so entries are not in order of time across streams.
#include "engine/timeline_ring.h"

#include <algorithm>

namespace sluice {

TimelineRing::TimelineRing(size_t max_bytes)
    : max_entries_(std::max<size_t>(max_bytes / sizeof(Entry), 1)) {}

void TimelineRing::take(const std::string& stream_name, std::vector<TraceSpan> spans) {
  const std::lock_guard lock(mutex_);
  auto name = std::ranges::find(names_, stream_name);
  if (name == names_.end()) name = names_.insert(names_.end(), stream_name);
  const auto stream = static_cast<size_t>(name - names_.begin());
  for (const TraceSpan& span : spans) {
    newest_end_ns_ = std::max(newest_end_ns_, span.end_ns);
    if (entries_.size() < max_entries_) {
      entries_.push_back({stream, span});
    } else {
      entries_[next_] = {stream, span};
      next_ = (next_ + 1) % max_entries_;
    }
  }
}

// Looks at all entries: at most two million, a few milliseconds, and asked for once a second.
std::vector<TimelineRing::Row> TimelineRing::newest(int64_t duration_ns) const {
  const std::lock_guard lock(mutex_);
  std::vector<Row> rows;
  for (const std::string& name : names_) rows.push_back({.stream_name = name, .spans = {}});
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[(next_ + i) % entries_.size()];
    if (entry.span.end_ns > newest_end_ns_ - duration_ns) {
      rows[entry.stream].spans.push_back(entry.span);
    }
  }
  std::erase_if(rows, [](const Row& row) { return row.spans.empty(); });
  std::ranges::sort(rows, {}, &Row::stream_name);
  return rows;
}

}  // namespace sluice
