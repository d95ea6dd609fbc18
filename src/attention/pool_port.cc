// A place is a block of pinned memory with the bytes of all layers, one after the other.
#include "attention/pool_port.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {

PoolPort::PoolPort(Device& device, Stream& compute, const DevicePool& pool,
                   std::optional<BlockSummaries> summaries)
    : compute_(compute),
      pool_(pool),
      summaries_(std::move(summaries)),
      memory_(device.allocate(pinned_bytes(pool.layout()), MemoryKind::kPinned)),
      places_(kNumPlaces),
      out_(device.make_stream({.name = "store", .num_threads = 1})) {
  std::byte* data = memory_.data();
  for (Place& place : places_) {
    place.data = data;
    place.moved = device.make_event();
    data += pool.layout().block_bytes_all_layers();
  }
}

// Null if no place is free. A place whose block has come in is free when compute has copied it.
PoolPort::Place* PoolPort::take(BlockId id, State state) {
  for (Place& place : places_) {
    if (place.state == State::kLeaving && place.moved->query()) place.state = State::kFree;
    if (place.state != State::kFree) continue;
    place.state = state;
    place.id = id;
    return &place;
  }
  return nullptr;
}

PoolPort::Place& PoolPort::find(BlockId id, State state) {
  const auto is_it = [&](const Place& place) { return place.state == state && place.id == id; };
  const auto found = std::ranges::find_if(places_, is_it);
  SLUICE_CHECK(found != places_.end(), "block {} is not on its way", id.value);
  return *found;
}

// The host has waited for the pass that computed the block.
bool PoolPort::begin_out(BlockId id) {
  if (num_out_ == kMaxOut) return false;
  Place* place = take(id, State::kOut);
  if (place == nullptr) return false;
  ++num_out_;
  const size_t block_bytes = pool_.layout().block_bytes();
  out_->copy_2d({.dst = place->data,
                 .dst_stride_bytes = block_bytes,
                 .src = pool_block(id),
                 .src_stride_bytes = pool_.layer_stride_bytes(),
                 .row_bytes = block_bytes,
                 .num_rows = static_cast<size_t>(pool_.layout().num_layers)});
  out_->record(*place->moved);
  return true;
}

// The first error of the copy is thrown here, on the engine's thread.
bool PoolPort::is_out(BlockId id) {
  const Place& place = find(id, State::kOut);
  if (!place.moved->query()) return false;
  place.moved->synchronize();  // throws what a query does not
  return true;
}

void PoolPort::end_out(BlockId id) {
  find(id, State::kOut).state = State::kFree;
  --num_out_;
}

bool PoolPort::begin_in(BlockId id) { return take(id, State::kIn) != nullptr; }

// Later passes are enqueued on compute as well, so they read what was copied.
void PoolPort::end_in(BlockId id, bool is_whole) {
  Place& place = find(id, State::kIn);
  place.state = State::kFree;
  if (!is_whole) return;
  const size_t block_bytes = pool_.layout().block_bytes();
  compute_.copy_2d({.dst = pool_block(id),
                    .dst_stride_bytes = pool_.layer_stride_bytes(),
                    .src = place.data,
                    .src_stride_bytes = block_bytes,
                    .row_bytes = block_bytes,
                    .num_rows = static_cast<size_t>(pool_.layout().num_layers)});
  compute_.record(*place.moved);
  place.state = State::kLeaving;
  if (!summaries_) return;
  for (const LayerId layer : pool_.layout().layers()) {
    summaries_->add(layer, pool_.layer(layer), id.value, id);
  }
}

std::vector<std::span<std::byte>> PoolPort::layers(BlockId id) const {
  const auto is_it = [&](const Place& place) {
    return place.id == id && (place.state == State::kIn || place.state == State::kOut);
  };
  const auto found = std::ranges::find_if(places_, is_it);
  SLUICE_CHECK(found != places_.end(), "block {} is not on its way", id.value);
  std::vector<std::span<std::byte>> layers;
  const size_t block_bytes = pool_.layout().block_bytes();
  for (int32_t i = 0; i < pool_.layout().num_layers; ++i) {
    layers.emplace_back(found->data + static_cast<size_t>(i) * block_bytes, block_bytes);
  }
  return layers;
}

}  // namespace sluice
