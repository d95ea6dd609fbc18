// WriteBack: the way from device to host: one stream, and a ticket for every block that left on it.
//
// Part of OffloadEngine. Every (layer, block) of the host tier has the ticket of the write-back
// that brought it; who reads the block waits for the event of that ticket, and so never overtakes
// the write. Thread rule: the engine's thread.
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
  // REQUIRES: `compute` and `gate` outlive it; memory that write-backs touch goes after it.
  WriteBack(Device& device, Stream& compute, int32_t num_layers, int32_t num_host_blocks,
            WaitGate& gate);

  // What stream() gets between `begin` and `end` is one write-back: it runs after everything that
  // is enqueued on compute at `begin`.
  TicketId begin();
  void end(TicketId ticket);
  Stream& stream() { return *stream_; }

  // The block of a layer comes to the host with this write-back; its contents are gone.
  void set_ticket(LayerId layer, BlockId id, TicketId ticket) { ticket_of(layer, id) = ticket; }
  void forget(LayerId layer, BlockId id) { ticket_of(layer, id) = TicketId(); }

  // `reader` waits until all of the blocks are on the host. REQUIRES: each was written.
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
  std::unique_ptr<Event> written_;              // compute has written what the next one reads
  std::unique_ptr<Stream> stream_;              // last: it ends before its events go
};

}  // namespace sluice
