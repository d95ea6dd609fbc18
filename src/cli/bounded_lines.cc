// Asks for room before each piece, since a file that others share must not be made non-blocking.
#include "cli/bounded_lines.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

#include <poll.h>
#include <unistd.h>

namespace sluice::cli {

// Also true if a write would fail: its error is the reason.
bool BoundedLines::has_room_until(Clock::time_point deadline) const {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd request = {.fd = file_, .events = POLLOUT, .revents = 0};
    const int num_ready = poll(&request, 1, std::max(0, static_cast<int>(left.count())));
    if (num_ready >= 0 || errno != EINTR) return num_ready != 0;
  }
}

// A pipe with room takes PIPE_BUF bytes without waiting. A file always has room, and what a full
// disk refuses is lost at once.
void BoundedLines::write(std::string_view line) {
  std::string text = is_cut_ ? "\n" : "";
  text.append(line).push_back('\n');
  const auto deadline = Clock::now() + (stands_still_ ? std::chrono::milliseconds(0) : kMaxWait);
  size_t num_done = 0;
  while (num_done < text.size() && has_room_until(deadline)) {
    const size_t num_bytes = std::min<size_t>(text.size() - num_done, PIPE_BUF);
    const ssize_t num_written = ::write(file_, text.data() + num_done, num_bytes);
    if (num_written < 0 && errno != EINTR && errno != EAGAIN) break;
    num_done += static_cast<size_t>(std::max<ssize_t>(num_written, 0));
  }
  stands_still_ = num_done < text.size();
  if (num_done > 0) is_cut_ = stands_still_;
  if (stands_still_) ++num_lost_;
}

}  // namespace sluice::cli
