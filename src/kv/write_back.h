// WriteBack: transfers from device to host: one stream, and a ticket for every block that left on
// it.
//
// Part of OffloadEngine. Every (layer, block) of the host tier has the ticket of the write-back
// that wrote it; a reader of the block waits for the event of that ticket (invariant 4). Thread
// rule: the engine's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "kv/wait_gate.h"

namespace sluice {

class WriteBack {
 public:
  // REQUIRES: `compute`, `gate` and the memory that write-backs use outlive it.
  WriteBack(Device& device, Stream& compute, int32_t num_layers, int32_t num_host_blocks,
            WaitGate& gate);

  // The work enqueued on stream() between `begin` and `end` is one write-back. It runs after all
  // work that was enqueued on compute before `begin`.
  TicketId begin();
  void end(TicketId ticket);
  Stream& stream() { return *stream_; }

  // Sets or clears the ticket of a block: this write-back writes it; its contents are discarded.
  void set_ticket(LayerId layer, BlockId id, TicketId ticket) { ticket_of(layer, id) = ticket; }
  void forget(LayerId layer, BlockId id) { ticket_of(layer, id) = TicketId(); }

  // Whether the block has reached the host, in all layers: others may read its bytes then.
  // Errors: the first error of the write-backs. REQUIRES (checked): it has tickets.
  bool is_on_host(BlockId id);

  // `reader` waits until all blocks are on the host. REQUIRES (checked): each has a ticket.
  void wait_until_on_host(Stream& reader, LayerId layer, std::span<const BlockId> blocks);

 private:
  TicketId& ticket_of(LayerId layer, BlockId id);
  Event& event_of(TicketId ticket);

  Stream& compute_;
  WaitGate& gate_;
  int32_t num_host_blocks_;
  std::vector<TicketId> tickets_;  // [layer][host block]: not valid when never written
  TicketId newest_{0};
  std::vector<std::unique_ptr<Event>> events_;  // ticket % size
  std::unique_ptr<Event> written_;  // recorded on compute by begin(): the source is written
  std::unique_ptr<Stream> stream_;  // last: it ends before its events are freed
};

}  // namespace sluice
