// EngineView: what an engine computes and holds at one moment, block by block; and what its streams
// ran.
//
// Made on the engine's thread while a client watches (EngineService::watch), read by pages. Thread
// rule: values; a view does not change.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "service/service_snapshot.h"
#include "sluice/request_output.h"

namespace sluice {

// Where the KV of a block is.
enum class KvPlace : uint8_t {
  kDevice,     // on the device; with KV offload on the host, too
  kHost,       // in host memory alone
  kComputing,  // nowhere yet: it belongs to tokens that are being computed
  kLoading,    // nowhere yet: it is being read from the KV store
};

struct BlockCell {
  int32_t id = 0;
  KvPlace place = KvPlace::kDevice;
};

// A request that holds blocks. One that waits, also after a preemption, has none.
struct SequenceView {
  int64_t request_id = 0;  // of EngineService::submit
  int64_t num_prompt_tokens = 0;
  int64_t num_cached_tokens = 0;  // of the prompt: found by prefix caching
  int64_t num_done = 0;           // of the prompt: computed or cached
  int64_t num_generated = 0;
  std::vector<BlockCell> blocks;  // in order of position; several requests may hold one
};

// A pin, and those of its blocks that memory holds; requests may hold them, too.
struct PinView {
  std::string name;
  std::vector<BlockCell> blocks;  // in order of position
  int64_t num_disk_blocks = 0;    // after these: blocks that only the KV store has
};

// A slot of the ring, through which offloaded KV comes to the device.
struct SlotView {
  bool is_held = false;         // it is being loaded, or compute will read it
  int32_t layer = -1;           // -1: none
  bool has_pages = false;       // pages that decode has listed, instead of blocks
  std::vector<int32_t> blocks;  // ids, in order of position
};

// How often decode chose the pages of a block since the last view that had any.
struct BlockReads {
  int32_t id = 0;
  std::vector<uint32_t> pages;  // in order of position
};

struct EngineView {
  int64_t time_ns = 0;  // of std::chrono::steady_clock
  int64_t num_running = 0;
  int64_t num_waiting = 0;  // in the engine
  int64_t num_waiting_prompt_tokens = 0;
  EngineStats stats;

  KvFacts kv;
  int32_t num_blank = 0;  // blocks that hold nothing
  std::vector<SequenceView> sequences;
  std::vector<PinView> pins;  // by name
  std::vector<SlotView> slots;
  // Blocks without a holder that a prompt can still find: runs in which each continues the one
  // before, that which was used last first.
  std::vector<std::vector<BlockCell>> kept;

  // Pages that a decode policy chose by score (PageReadCounts), in blocks that had any. Views
  // within a pass have none; what is counted meanwhile is in the next view.
  std::vector<BlockReads> reads;
  int32_t page_tokens = 0;  // 0: nothing is counted
};

// Receives views on the engine's thread; must not block. False: it takes no more of them.
using ViewSink = std::function<bool(const std::shared_ptr<const EngineView>& view)>;

// What one stream ran, in order. Streams: "engine" (whole steps), "compute", and with KV offload
// "write-back" and "slot 0", "slot 1", ...
struct StreamSpans {
  struct Span {
    const char* op_name = "";  // a literal
    int64_t begin_ns = 0;      // of std::chrono::steady_clock
    int64_t end_ns = 0;
  };
  std::string stream_name;
  std::vector<Span> spans;
};

}  // namespace sluice
