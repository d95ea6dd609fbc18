// Capture: which streams take part in a Stream::capture, and which steps of the others each of them
// has waited for.
//
// Used by the streams and events of both backends, so that both refuse the same mistakes with the
// same text: CUDA would detect most of them, but only on a machine with a GPU. It keeps one vector
// clock per stream; the recorded work is kept by the backend. Thread rule: the host thread that
// enqueues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sluice {

class Capture;

// The state of an event that was recorded inside a capture.
struct CapturePoint {
  std::shared_ptr<Capture> capture;  // null: recorded outside a capture, or never
  size_t number = 0;                 // index among the capture's points, in order of recording
  std::vector<int64_t> reached;      // [stream]: steps that come before the event

  // Checks that the event was recorded outside a capture, before the host queries it or waits.
  void check_outside() const;
};

class Capture {
 public:
  virtual ~Capture() = default;

  bool is_open() const { return is_open_; }
  size_t num_points() const { return num_points_; }
  size_t num_streams() const { return streams_.size(); }

  // Ends the capture.
  // REQUIRES (checked): the first stream has waited for all steps of the others.
  void close();
  // Ends the capture without that check, after an exception.
  void abandon() noexcept { is_open_ = false; }

 private:
  friend class CaptureMember;
  struct Member {
    std::string stream_name;
    int64_t num_steps = 0;         // recorded on this stream so far
    std::vector<int64_t> reached;  // [stream]: steps that its next step comes after
  };
  size_t add_stream(const std::string& stream_name);

  bool is_open_ = true;
  size_t num_points_ = 0;
  std::vector<Member> streams_;  // the first began the capture
};

// A stream's membership in a capture; empty most of the time.
class CaptureMember {
 public:
  // Whether the stream takes part in a capture now.
  bool active() const { return capture_ != nullptr && capture_->is_open(); }
  // REQUIRES for both: active.
  Capture& capture() const { return *capture_; }
  size_t index() const { return index_; }  // of the stream, in order of joining

  // The stream begins a capture.
  void begin(std::shared_ptr<Capture> capture, const std::string& stream_name);
  // Counts a step of the stream. Outside of a capture it does nothing.
  void add_step();
  // The point of an event that the stream records; an empty one outside of a capture.
  CapturePoint record();
  // The stream waits for `point`, and joins the capture if it is in none. False: both are outside.
  // REQUIRES (checked): a point of the stream's own capture, which is open.
  bool wait(const CapturePoint& point, const std::string& stream_name);

 private:
  std::shared_ptr<Capture> capture_;
  size_t index_ = 0;
};

}  // namespace sluice
