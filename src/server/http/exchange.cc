#include "server/http/exchange.h"

#include <utility>

namespace sluice::http {

Exchange::Exchange(std::shared_ptr<Outbox> outbox, std::string request_id, FaultBody faults)
    : outbox_(std::move(outbox)), request_id_(std::move(request_id)), faults_(faults) {}

Exchange::~Exchange() {
  if (outbox_->is_unanswered()) {
    fail({.status = 500, .message = "the request was given up unanswered"});
  }
  outbox_->abandon();
}

}  // namespace sluice::http
