// TransferCounters: how much KV crossed the link between host and device, and in how many calls.
//
// Kept by OffloadEngine, read by engine/observer. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

// Bytes and calls since construction. Keeping it costs an addition for each transfer.
struct TransferCounters {
  std::vector<int64_t> loaded_bytes;   // [num_layers] host to device
  std::vector<int64_t> written_bytes;  // [num_layers] device to host
  // [num_layers] listed pages of hot pages; empty without them.
  struct HotPages {
    int64_t num_hits = 0;
    int64_t num_misses = 0;
    int64_t num_evictions = 0;
  };
  std::vector<HotPages> hot_pages;
  int64_t key_bytes = 0;   // of loaded_bytes: loads of keys alone
  int64_t num_loads = 0;   // slots filled
  int64_t num_copies = 0;  // transfers enqueued; runs of neighbours count once, and so do kernels
};

}  // namespace sluice
