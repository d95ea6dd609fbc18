// Joins and waits of a capture, with one vector clock per stream: entry i of a stream's clock is
// the number of steps of stream i that its next step comes after.
#include "device/capture.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

void CapturePoint::check_outside() const {
  SLUICE_CHECK(capture == nullptr,
               "an event that was recorded inside a capture is never reached; record it anew");
}

size_t Capture::add_stream(const std::string& stream_name) {
  streams_.push_back({.stream_name = stream_name});
  return streams_.size() - 1;
}

void Capture::close() {
  streams_[0].reached.resize(streams_.size());
  for (size_t i = 1; i < streams_.size(); ++i) {
    const Member& member = streams_[i];
    SLUICE_CHECK(streams_[0].reached[i] == member.num_steps,
                 "stream '{}' joined the capture of stream '{}' and was not waited for at its end",
                 member.stream_name, streams_[0].stream_name);
  }
  is_open_ = false;
}

void CaptureMember::begin(std::shared_ptr<Capture> capture, const std::string& stream_name) {
  SLUICE_CHECK(!active(), "stream '{}' captures already", stream_name);
  capture_ = std::move(capture);
  index_ = capture_->add_stream(stream_name);
}

void CaptureMember::add_step() {
  if (active()) ++capture_->streams_[index_].num_steps;
}

CapturePoint CaptureMember::record() {
  if (!active()) return {};
  add_step();
  Capture::Member& member = capture_->streams_[index_];
  member.reached.resize(std::max(member.reached.size(), index_ + 1));
  member.reached[index_] = member.num_steps;
  return {.capture = capture_, .number = capture_->num_points_++, .reached = member.reached};
}

bool CaptureMember::wait(const CapturePoint& point, const std::string& stream_name) {
  if (point.capture == nullptr) {
    SLUICE_CHECK(!active(),
                 "stream '{}' waits inside a capture for an event from outside; let the stream "
                 "that launches the graph wait for it before",
                 stream_name);
    return false;
  }
  SLUICE_CHECK(point.capture->is_open(),
               "stream '{}' waits for an event of a capture that has ended; record it anew",
               stream_name);
  if (!active()) {
    capture_ = point.capture;
    index_ = capture_->add_stream(stream_name);
  }
  SLUICE_CHECK(capture_ == point.capture, "stream '{}' waits for an event of another capture",
               stream_name);
  add_step();  // a stream that only waits must be joined as well
  std::vector<int64_t>& reached = capture_->streams_[index_].reached;
  reached.resize(std::max(reached.size(), point.reached.size()));
  for (size_t i = 0; i < point.reached.size(); ++i) {
    reached[i] = std::max(reached[i], point.reached[i]);
  }
  return true;
}

}  // namespace sluice
