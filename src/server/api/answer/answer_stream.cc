#include "server/api/answer/answer_stream.h"

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace sluice::api {
namespace {

using Writer = std::shared_ptr<AnswerWriter>;

// The first or the last event: text that `write` makes of what the writer has seen.
class EdgeEvent : public http::StreamEvent {
 public:
  explicit EdgeEvent(std::function<void(std::string&)> write) : write_(std::move(write)) {}

  size_t size_bytes() const override { return sizeof(*this); }
  void render(std::string& out) const override { write_(out); }

 private:
  std::function<void(std::string&)> write_;
};

// Shares and deltas. Rendered once: it moves the writer on.
class UpdateEvent : public http::StreamEvent {
 public:
  explicit UpdateEvent(Writer writer) : writer_(std::move(writer)) {}

  // Of shares that wait the first one, which says what the cache had, and the latest.
  void add_share(size_t prompt, const PromptShare& share) {
    std::vector<PromptShare>& shares = shares_[prompt];
    if (shares.size() == 2) {
      shares.back() = share;
      return;
    }
    size_bytes_ += sizeof(share);
    shares.push_back(share);
  }

  void add(AnswerDelta delta) {
    size_bytes_ += delta.size_bytes();
    const auto found = deltas_.find(delta.choice);
    if (found != deltas_.end()) return found->second.append(std::move(delta));
    const size_t choice = delta.choice;
    deltas_.emplace(choice, std::move(delta));
  }

  bool absorb(http::StreamEvent& next) override {
    auto* update = dynamic_cast<UpdateEvent*>(&next);
    if (update == nullptr || update->writer_ != writer_) return false;
    for (const auto& [prompt, shares] : update->shares_) {
      for (const PromptShare& share : shares) add_share(prompt, share);
    }
    for (auto& [choice, delta] : update->deltas_) add(std::move(delta));
    return true;
  }

  size_t size_bytes() const override { return size_bytes_; }

  void render(std::string& out) const override {
    for (const auto& [prompt, shares] : shares_) {
      for (const PromptShare& share : shares) writer_->write_share(prompt, share, out);
    }
    for (const auto& [choice, delta] : deltas_) writer_->write_delta(delta, out);
  }

 private:
  Writer writer_;
  std::map<size_t, std::vector<PromptShare>> shares_;  // by prompt
  std::map<size_t, AnswerDelta> deltas_;               // by choice
  size_t size_bytes_ = sizeof(*this);
};

}  // namespace

AnswerStream::AnswerStream(std::shared_ptr<const AnswerOptions> options,
                           std::shared_ptr<AnswerWriter> writer)
    : options_(std::move(options)),
      writer_(std::move(writer)),
      num_done_(options_->prompts.size(), kNoShare),
      last_share_(options_->queued) {}

// Both run on the connection's strand: a ping never meets an event that is being written.
http::StreamStart AnswerStream::head() const {
  return {.ping = [writer = writer_](std::string& out) { writer->write_ping(out); }};
}

AnswerStream::Event AnswerStream::start() {
  return std::make_unique<EdgeEvent>(
      [writer = writer_](std::string& out) { writer->write_start(out); });
}

AnswerStream::Event AnswerStream::progress(size_t choice, const PromptProgress& progress,
                                           http::TimePoint now) {
  const size_t prompt = choice / options_->n;
  if (!options_->return_progress || progress.num_done <= num_done_[prompt]) return nullptr;
  const bool is_edge =
      num_done_[prompt] == kNoShare || progress.num_done == progress.num_prompt_tokens;
  if (!is_edge && now - last_share_ < kShareInterval) return nullptr;
  num_done_[prompt] = progress.num_done;
  last_share_ = now;
  const auto time = std::chrono::duration_cast<http::Milliseconds>(now - options_->queued);
  auto event = std::make_unique<UpdateEvent>(writer_);
  event->add_share(prompt, {.total = progress.num_prompt_tokens,
                            .cache = progress.num_cached_tokens,
                            .processed = progress.num_done,
                            .time_ms = time.count()});
  return event;
}

AnswerStream::Event AnswerStream::delta(size_t choice, RequestOutput output, http::TimePoint now) {
  auto event = std::make_unique<UpdateEvent>(writer_);
  event->add(make_delta(*options_, choice, std::move(output), now));
  return event;
}

AnswerStream::Event AnswerStream::end(std::optional<CachedPlaces> places) {
  return std::make_unique<EdgeEvent>(
      [writer = writer_, places](std::string& out) { writer->write_end(places, out); });
}

AnswerStream::Event AnswerStream::fail(http::Fault fault) {
  return std::make_unique<EdgeEvent>([writer = writer_, fault = std::move(fault)](
                                         std::string& out) { writer->write_fault(fault, out); });
}

}  // namespace sluice::api
