// Server-sent events: the text of events and comments, and events that merge while they wait.
//
// Producers make StreamEvents; the connection renders them when the client can take bytes, so that
// the producer's thread does not pay for it. Thread rule: an event is used by one thread at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::http {

// Appends "event: NAME" (unless the name is empty) and the data, one "data:" line for each of its
// lines. CR, LF and CR LF all end a line for a client, therefore for this writer, too.
void append_sse_event(std::string& out, std::string_view name, std::string_view data);

// Appends a comment, which clients skip. `text` is one line.
void append_sse_comment(std::string& out, std::string_view text);

// A part of a stream that waits for its client.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  // Takes the contents of `next`, which was sent directly after this one, and returns true; or
  // leaves it alone and returns false. Events of deltas add their texts here.
  virtual bool absorb(StreamEvent& next);
  // What it costs while it waits; may grow by absorb alone.
  virtual size_t size_bytes() const = 0;
  // Appends the bytes for the client.
  virtual void render(std::string& out) const = 0;
};

// An event that is complete and merges with nothing.
class SseEvent : public StreamEvent {
 public:
  explicit SseEvent(std::string data, std::string name = {})
      : data_(std::move(data)), name_(std::move(name)) {}

  size_t size_bytes() const override { return sizeof(*this) + data_.size() + name_.size(); }
  void render(std::string& out) const override { append_sse_event(out, name_, data_); }

 private:
  std::string data_;
  std::string name_;
};

}  // namespace sluice::http
