#include "server/http/exchange.h"

#include <utility>

namespace sluice::http {

Exchange::Exchange(std::shared_ptr<Outbox> outbox, std::string request_id)
    : outbox_(std::move(outbox)), request_id_(std::move(request_id)) {}

Exchange::~Exchange() { outbox_->abandon(); }

}  // namespace sluice::http
