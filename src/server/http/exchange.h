// Exchange: how a handler answers one request, from any thread and without ever waiting.
//
// Made by Connection for each request; handlers pass it on to whoever produces the answer. When the
// last owner drops it unanswered, the client gets 500; a stream without finish() is cut, so that
// the client does not take it for complete. Thread rule: any thread, also several at once.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/fault.h"
#include "server/http/message.h"
#include "server/http/outbox.h"

namespace sluice::http {

class Exchange {
 public:
  // `faults`: how this route's errors are written.
  Exchange(std::shared_ptr<Outbox> outbox, std::string request_id, FaultBody faults = fault_body);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const std::string& request_id() const { return request_id_; }

  // Order: one answer() or fail(); or begin_stream(), any number of send(), then finish(),
  // with the last event or without.
  // Each returns false, without effect, out of this order or when the client is gone.
  bool answer(Answer answer) { return outbox_->answer(std::move(answer)); }
  bool fail(const Fault& fault) {
    return outbox_->answer(fault_answer(fault, faults_, request_id_));
  }
  // The headers leave at once, with status 200.
  bool begin_stream(StreamStart start = {}) { return outbox_->begin_stream(std::move(start)); }
  bool send(std::unique_ptr<StreamEvent> event) { return outbox_->send(std::move(event)); }
  bool finish(std::unique_ptr<StreamEvent> last = nullptr) {
    return outbox_->finish(std::move(last));
  }

  // As Outbox::on_gone: once, unless the answer is complete before the client goes.
  void on_gone(std::function<void(Gone)> callback) { outbox_->on_gone(std::move(callback)); }

  // As Outbox::on_late.
  void on_late(std::function<void()> callback) { outbox_->on_late(std::move(callback)); }

  // Bytes of events that the client has not taken.
  size_t queued_bytes() const { return outbox_->queued_bytes(); }

 private:
  std::shared_ptr<Outbox> outbox_;
  std::string request_id_;
  FaultBody faults_;
};

}  // namespace sluice::http
