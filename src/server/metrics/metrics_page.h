// The page of /metrics: everything there is to show, at one moment.
//
// Thread rule: EngineReading is a value; render_metrics may be called from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/metrics/http_metrics.h"
#include "server/metrics/instruments.h"
#include "server/metrics/request_metrics.h"

namespace sluice::metrics {

// KV in one memory, in bytes; together they are its size.
struct KvBytes {
  int64_t used = 0;    // of blocks that running requests hold
  int64_t cached = 0;  // of others that a request with the same prefix can find
  int64_t free = 0;
};

// What KV offload has moved since the engine was made.
struct KvTransfers {
  int64_t h2d_bytes = 0;
  int64_t d2h_bytes = 0;
  int64_t num_slot_waits = 0;     // loads that waited for a slot of their own pass
  int64_t num_hot_page_hits = 0;  // of pages that decode listed
  int64_t num_hot_page_misses = 0;
};

// What the KV store has done since the engine was made.
struct StoreCounts {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t num_skipped_blocks = 0;  // evicted from memory before they could be written
  int64_t num_bad_files = 0;
  int64_t num_write_errors = 0;  // blocks that a fault of the disk or directory kept out
};

// Where experts of host memory came from since the engine was made.
struct ExpertReads {
  int64_t num_hits = 0;        // choices of rows whose expert was on the device
  int64_t num_misses = 0;      // fetched
  int64_t fetched_bytes = 0;   // of these
  int64_t streamed_bytes = 0;  // of whole layers, for passes of many rows
};

// What routers were told of KV since the engine was made.
struct KvEventSums {
  int64_t num_sent = 0;
  int64_t num_dropped = 0;
};

// What speculation has done since the engine was made.
struct DraftCounts {
  int64_t num_drafts = 0;
  int64_t num_draft_tokens = 0;
  int64_t num_accepted_tokens = 0;
};

// The state of the engine at one moment. Whoever has the engine's snapshot fills it.
struct EngineReading {
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t num_preemptions = 0;
  // Blocks of the memory that limits admission.
  int64_t num_blocks = 0;
  int64_t num_used_blocks = 0;

  int64_t block_tokens = 0;
  int64_t num_host_blocks = 0;  // of num_blocks, those in host memory: all of them or none

  std::optional<KvBytes> device_kv;      // empty: not known
  std::optional<KvBytes> host_kv;        // empty: no KV offload
  std::optional<KvTransfers> transfers;  // empty: no KV offload
  std::optional<StoreCounts> store;      // empty: no KV store
  std::optional<ExpertReads> experts;    // empty: no experts in host memory
  std::optional<KvEventSums> events;     // empty: no KV events
  std::optional<DraftCounts> drafts;     // empty: no speculative method
  Histogram::Reading step_tokens;        // of the engine's steps
  // Since the engine began a step or finished a part of a long one; 0 while it has nothing to do.
  double last_progress_s = 0;
  int64_t num_warnings = 0;  // that came while the engine ran

  double kv_usage() const;  // 0 to 1
};

// The state of the process.
struct ProcessReading {
  int64_t resident_bytes = 0;      // 0: not known
  int64_t num_lost_log_lines = 0;  // that could not be written
};

// The memory of this process, as the kernel counts it now.
int64_t resident_bytes();

struct MetricsSources {
  std::string_view model_name;  // any bytes
  const HttpMetrics& http;
  ProcessReading process = {};
  const RequestMetrics* requests = nullptr;  // null: the model is not loaded
  const EngineReading* engine = nullptr;     // null: the model is not loaded
};

// In the format of kExpositionType. All samples have the labels model_name and engine="0".
std::string render_metrics(const MetricsSources& sources);

}  // namespace sluice::metrics
