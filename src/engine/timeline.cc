// Writes the trace event format: complete events ("X") and row names ("M"), times in microseconds.
// Source: "Trace Event Format", the Catapult project.
#include "engine/timeline.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "io/file.h"

namespace sluice {
namespace {

// Sort key of a stream's row. From top to bottom: the engine's steps, compute, write-back, the
// slots by number, then all others.
int row_order(const std::string& stream_name) {
  constexpr std::string_view kSlot = "slot ";
  if (stream_name == "engine") return 0;
  if (stream_name == "compute") return 1;
  if (stream_name == "write-back") return 2;
  int slot = 0;
  if (stream_name.starts_with(kSlot)) {
    std::from_chars(stream_name.data() + kSlot.size(), stream_name.data() + stream_name.size(),
                    slot);
    return 3 + slot;
  }
  return std::numeric_limits<int>::max();
}

// The format counts in microseconds; fractions keep the nanoseconds.
double microseconds(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

// The two events that name row `row` and fix its place from the top.
std::string row_text(const std::string& name, size_t row) {
  return fmt::format(
      ",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{0},\"name\":\"thread_name\",\"args\":{{\"name\":\"{1}"
      "\"}}"
      "}},\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{0},\"name\":\"thread_sort_index\",\"args\":{{"
      "\"sort_index\":{0}}}}}",
      row, name);
}

}  // namespace

Timeline::Timeline(std::filesystem::path path) : path_(std::move(path)) { require_writable(path_); }

void Timeline::require_writable(const std::filesystem::path& path) {
  std::error_code unknown;  // any other obstacle shows when the probe is opened
  if (std::filesystem::is_directory(path, unknown)) {
    fail(ErrorCode::kIo, "the timeline cannot be written to {}: it is a directory; name a file",
         path.string());
  }
  AtomicFile probe(path);  // never committed, so it leaves no file
}

void Timeline::take(const std::string& stream_name, std::vector<TraceSpan> spans) {
  std::vector<TraceSpan>& all = streams_[stream_name];
  all.insert(all.end(), spans.begin(), spans.end());
}

void Timeline::write() const {
  std::vector<std::pair<int, std::string>> rows;
  int64_t begin_ns = std::numeric_limits<int64_t>::max();
  for (const auto& [name, spans] : streams_) {
    rows.emplace_back(row_order(name), name);
    for (const TraceSpan& span : spans) begin_ns = std::min(begin_ns, span.begin_ns);  // time 0
  }
  std::sort(rows.begin(), rows.end());

  AtomicFile file(path_);
  file.write(
      "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
      "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"sluice\"}}");
  for (size_t row = 0; row < rows.size(); ++row) {
    const std::string& name = rows[row].second;
    std::string text = row_text(name, row);
    for (const TraceSpan& span : streams_.at(name)) {
      text += fmt::format(
          ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"ts\":{:.3f},\"dur\":{:.3f}}}",
          row, span.op_name, microseconds(span.begin_ns - begin_ns),
          microseconds(span.end_ns - span.begin_ns));
    }
    file.write(text);
  }
  file.write("\n]}\n");
  file.commit();
}

}  // namespace sluice
