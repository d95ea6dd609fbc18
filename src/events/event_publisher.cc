// The queue, and the thread that empties it.
#include "events/event_publisher.h"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>

#include <sys/eventfd.h>
#include <unistd.h>

#include "core/error.h"
#include "events/event_payload.h"

namespace sluice {
namespace {

// How long the end of the program waits for readers of the last messages.
constexpr int kLingerMs = 1000;

// The number that ends a replay: -1.
constexpr uint64_t kEndOfReplay = std::numeric_limits<uint64_t>::max();

std::string big_endian(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<char>(number >> shift & 255));
  }
  return bytes;
}

uint64_t number_of(const std::string& bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

// Options of sockets are ints. ZeroMQ takes 0 for "no limit".
int limit_of(int64_t messages) {
  return static_cast<int>(std::min<int64_t>(messages, std::numeric_limits<int>::max()));
}

}  // namespace

EventPublisher::Bell::Bell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) fail(ErrorCode::kIo, "no eventfd can be made; raise the limit of open files");
}

EventPublisher::Bell::~Bell() { ::close(fd_); }

// Several rings before the thread looks are one. A counter that is full is readable, too, so a
// failed write loses nothing.
void EventPublisher::Bell::ring() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);
}

void EventPublisher::Bell::silence() const {
  uint64_t count;
  [[maybe_unused]] const ssize_t taken = ::read(fd_, &count, sizeof count);
}

// Sockets are made here, so that errors reach the caller, and used by the thread alone afterwards:
// its start orders the two, as ZeroMQ asks for.
EventPublisher::EventPublisher(const EventPublisherOptions& options)
    : options_(options), publisher_(context_, ZmqKind::kPub) {
  publisher_.set(ZmqOption::kSendLimit, limit_of(options_.send_limit));
  bind(publisher_, options_.endpoint, "kv_events");
  if (options_.replay_endpoint) {
    replay_.emplace(context_, ZmqKind::kRouter);
    // One whole replay fits. Readers that ask again and do not read get no more.
    replay_->set(ZmqOption::kSendLimit, limit_of(options_.buffer_steps + 1));
    bind(*replay_, *options_.replay_endpoint, "kv_events_replay");
  }
  thread_ = std::thread([this] { run(); });
}

EventPublisher::~EventPublisher() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  bell_.ring();
  thread_.join();
}

// An operating system gives a port to one program; a second replica on this machine needs another.
void EventPublisher::bind(ZmqSocket& socket, const std::string& endpoint, const char* option) {
  socket.set(ZmqOption::kLinger, kLingerMs);
  try {
    socket.bind(endpoint);
  } catch (const Error& error) {
    fail(error.code(),
         "{} is '{}', but {}; give an address of this machine, as tcp://*:5557 or "
         "tcp://127.0.0.1:5557, whose port is free",
         option, endpoint, error.message());
  }
  endpoints_.push_back(socket.endpoint());
}

// A batch that is larger than the whole queue still fits into an empty one.
bool EventPublisher::try_publish(CacheEventBatch& batch) {
  const std::lock_guard lock(mutex_);
  const int64_t num_after = num_waiting_events_ + std::ssize(batch.events);
  if (!waiting_.empty() && num_after > options_.max_waiting_events) return false;
  add(std::move(batch));
  return true;
}

// A batch that the thread has taken already is sent before this one.
void EventPublisher::replace_waiting(CacheEventBatch batch) {
  const std::lock_guard lock(mutex_);
  num_dropped_ += num_waiting_events_;
  num_waiting_events_ = 0;
  waiting_.clear();
  add(std::move(batch));
}

void EventPublisher::add(CacheEventBatch&& batch) {
  num_waiting_events_ += std::ssize(batch.events);
  waiting_.push_back(std::move(batch));
  bell_.ring();
}

// What waits when the end comes is sent before it.
void EventPublisher::run() {
  for (bool is_over = false; !is_over;) {
    const ZmqReady ready = ZmqReady::wait(replay_ ? &*replay_ : nullptr, bell_.fd(), -1);
    if (ready.can_read) bell_.silence();
    is_over = send_waiting();
    if (ready.has_message) answer_replay();
  }
}

// One batch at a time, so that the bound counts all that is not sent. Returns whether this was all
// that will ever come.
bool EventPublisher::send_waiting() {
  while (true) {
    CacheEventBatch batch;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return is_over_;
      batch = std::move(waiting_.front());
      waiting_.pop_front();
      num_waiting_events_ -= std::ssize(batch.events);
    }
    send(batch);
  }
}

// A fault, which is too little memory, leaves a gap in the numbers, by which readers see it.
void EventPublisher::send(const CacheEventBatch& batch) {
  const uint64_t number = next_number_++;
  try {
    std::string payload = encode_events(batch);
    const std::string number_bytes = big_endian(number);
    const std::array<std::string_view, 3> frames = {options_.topic, number_bytes, payload};
    publisher_.send(frames);
    if (replay_) sent_.emplace_back(number, std::move(payload));
    if (std::ssize(sent_) > options_.buffer_steps) sent_.pop_front();
    num_sent_ += std::ssize(batch.events);
  } catch (const std::exception&) {
    num_dropped_ += std::ssize(batch.events);
  }
}

// A request has the identity of its sender, an empty frame and the first number that is wanted.
// Other messages are of no reader of events. One request at a time: events go first.
void EventPublisher::answer_replay() {
  try {
    const std::vector<std::string> request = replay_->receive();
    if (request.size() != 3 || !request[1].empty() || request[2].size() > 8) return;
    const auto answer = [&](uint64_t number, std::string_view payload) {
      const std::string number_bytes = big_endian(number);
      const std::array<std::string_view, 4> frames = {request[0], "", number_bytes, payload};
      replay_->send(frames);
    };
    const uint64_t first = number_of(request[2]);
    for (const auto& [number, payload] : sent_) {
      if (number >= first) answer(number, payload);
    }
    answer(kEndOfReplay, "");
  } catch (const std::exception&) {
    // Of this reader alone: it sees that the end is missing, and asks again.
  }
}

}  // namespace sluice
