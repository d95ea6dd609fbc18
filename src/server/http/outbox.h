// Outbox: what a handler has answered and the client has not taken yet.
//
// The border between the threads that produce answers and the connection: the lock is held for a
// few moves of pointers, never during I/O, rendering or a callback. Used by Exchange (the
// producer's side) and Connection. Thread rule: any thread; the functions of the connection's side
// only on its strand.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http/limits.h"
#include "server/http/message.h"
#include "server/http/sse.h"

namespace sluice::http {

// Why the rest of an answer will not be read.
enum class Gone {
  kDisconnected,  // the client closed its side, reset the connection, or is dead
  kSlowClient,    // too many bytes wait for it, or it took none for too long
  kStopped,       // the server stops
};

// The head of a stream and what keeps it alive.
struct StreamStart {
  std::string content_type = "text/event-stream; charset=utf-8";
  std::vector<Field> fields = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  // After this long without a byte, `ping` appends what is sent instead; it runs on a thread of the
  // server. The default is the comment "ping".
  Milliseconds ping_interval{10'000};
  std::function<void(std::string& out)> ping = [](std::string& out) {
    append_sse_comment(out, "ping");
  };
};

class Outbox {
 public:
  // `wake` is called without the lock when the connection has something to take; it must not block.
  Outbox(size_t max_bytes, std::function<void()> wake);

  // The producer's side. Each returns false when the client is gone, or the call comes too late:
  // after an answer, a finish, or for send() and finish() without a stream.
  bool answer(Answer answer);
  bool begin_stream(StreamStart start);
  // Merges with the last waiting event if that one absorbs it.
  bool send(std::unique_ptr<StreamEvent> event);
  // The last event and the end of the stream leave together: a client that closes when it has read
  // that event has the whole answer. Null: no event.
  bool finish(std::unique_ptr<StreamEvent> last = nullptr);
  // Whether neither an answer nor a stream has begun.
  bool is_unanswered() const;
  // No producer is left: an unfinished stream is cut.
  void abandon();
  // `callback` is called once if the client goes before the answer is complete, on a thread of the
  // server; at once on this thread if it has gone. It must not block.
  void on_gone(std::function<void(Gone)> callback);
  // `callback` is called once if Limits::answer_time ends before the answer is complete, as that of
  // on_gone. The connection stays: the producer may still end its answer.
  void on_late(std::function<void()> callback);

  // The connection's side.
  struct Batch {
    std::optional<Answer> answer;
    std::optional<StreamStart> start;
    std::vector<std::unique_ptr<StreamEvent>> events;
    bool finished = false;  // nothing follows
    bool cut = false;       // the stream ends without its end
  };
  // Takes events of about `max_bytes`. What it leaves goes on merging.
  Batch take(size_t max_bytes);
  // Bytes that were taken and rendered, and that the client has not taken; they count as waiting.
  void set_in_flight(size_t bytes);
  // Whether the client is too slow, and the connection must call lose().
  bool overflowed() const;
  void lose(Gone reason);
  // Limits::answer_time is over.
  void expire();

  size_t queued_bytes() const;

 private:
  enum class Phase { kWaiting, kAnswered, kStreaming, kFinished };

  // Nothing will be taken any more.
  bool closed() const { return gone_.has_value() || overflowed_; }
  // The producer has given everything; the connection may still have to send it.
  bool complete() const { return phase_ == Phase::kAnswered || phase_ == Phase::kFinished; }
  void drop_events();
  // Adds to what waits, or to its last event. False: it is too much, and nothing waits any more.
  bool add(std::unique_ptr<StreamEvent> event);

  const size_t max_bytes_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  Phase phase_ = Phase::kWaiting;
  bool overflowed_ = false;  // set by a producer; the connection acts on it when it is woken
  bool cut_ = false;         // the producer went without an end
  std::optional<Gone> gone_;
  std::function<void(Gone)> callback_;  // called without the lock, as the other one
  bool is_late_ = false;
  std::function<void()> late_callback_;
  std::optional<Answer> answer_;
  std::optional<StreamStart> start_;
  std::deque<std::unique_ptr<StreamEvent>> events_;
  size_t event_bytes_ = 0;      // of events_
  size_t in_flight_bytes_ = 0;  // see set_in_flight
};

}  // namespace sluice::http
