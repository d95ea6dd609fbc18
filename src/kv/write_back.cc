// Tickets and their events: a ring of events serves all tickets.
#include "kv/write_back.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {
namespace {

// Number of newest write-backs whose events are kept. For an older ticket the oldest kept event is
// used: write-backs end in order, so that wait may be longer than necessary, but never too short.
constexpr size_t kTicketEvents = 64;

}  // namespace

WriteBack::WriteBack(Device& device, Stream& compute, int32_t num_layers, int32_t num_host_blocks,
                     WaitGate& gate)
    : compute_(compute),
      gate_(gate),
      num_host_blocks_(num_host_blocks),
      tickets_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_host_blocks)),
      written_(device.make_event()),
      stream_(device.make_stream({.name = "write-back", .num_threads = 1})) {
  for (size_t i = 0; i < kTicketEvents; ++i) events_.push_back(device.make_event());
}

TicketId& WriteBack::ticket_of(LayerId layer, BlockId id) {
  return tickets_[static_cast<size_t>(layer.value) * static_cast<size_t>(num_host_blocks_) +
                  static_cast<size_t>(id.value)];
}

// The event to wait for: that of the ticket, or the oldest kept one.
Event& WriteBack::event_of(TicketId ticket) {
  const auto kept = static_cast<int64_t>(kTicketEvents);
  const int64_t oldest = newest_.value - kept + 1;
  return *events_[static_cast<size_t>(std::max(ticket.value, oldest) % kept)];
}

TicketId WriteBack::begin() {
  compute_.record(*written_);
  gate_.wait(WaitKind::kWritten, *stream_, *written_);
  return TicketId(++newest_.value);
}

void WriteBack::end(TicketId ticket) {
  stream_->record(*events_[static_cast<size_t>(ticket.value) % kTicketEvents]);
}

// Write-backs end in order, so the newest of the block's tickets covers all layers. A query does
// not throw, so an event that is reached is waited for as well.
bool WriteBack::is_on_host(BlockId id) {
  const auto num_layers = static_cast<int32_t>(tickets_.size()) / num_host_blocks_;
  TicketId newest;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const TicketId ticket = ticket_of(LayerId(layer), id);
    SLUICE_CHECK(ticket.valid(), "block {} of layer {} was never written", id.value, layer);
    newest = std::max(newest, ticket);
  }
  const Event& event = event_of(newest);
  if (!event.query()) return false;
  event.synchronize();
  return true;
}

void WriteBack::wait_until_on_host(Stream& reader, LayerId layer, std::span<const BlockId> blocks) {
  TicketId newest;
  for (const BlockId id : blocks) {
    const TicketId ticket = ticket_of(layer, id);
    SLUICE_CHECK(ticket.valid(), "block {} of layer {} was never written", id.value, layer.value);
    newest = std::max(newest, ticket);
  }
  gate_.wait(WaitKind::kOnHost, reader, event_of(newest));
}

}  // namespace sluice
