// ServerCounts: what a server has counted so far, read from its page of metrics.
//
// Used by the scenarios of `sluice bench serve`, which compare two of them; a server of this
// process and a running one are read alike. Thread rule: values and a free function.
#pragma once

#include <cstdint>
#include <string_view>

#include "cli/bench/serve/load_client.h"

namespace sluice::cli {

struct ServerCounts {
  int64_t num_prompt_tokens = 0;  // computed or cached
  int64_t num_cached_tokens = 0;
  int64_t num_generated_tokens = 0;
  int64_t num_preemptions = 0;
  int64_t num_aborted = 0;  // requests that the server cancelled
  int64_t num_running = 0;
  int64_t num_waiting = 0;
  int64_t used_kv_bytes = 0;  // held by requests, in all places
  int64_t block_tokens = 0;

  int64_t num_computed_tokens() const { return num_prompt_tokens - num_cached_tokens; }
  // The engine publishes its state before it hands out the last part of an answer, so a server
  // whose answers have all come is idle without a wait. Whether no request holds or waits for KV
  // memory.
  bool is_idle() const { return num_running == 0 && num_waiting == 0 && used_kv_bytes == 0; }
};

// The tokens and requests between two readings; what is no counter is that of `after`.
ServerCounts counted_between(const ServerCounts& before, const ServerCounts& after);

// Errors: kIo for a page without one of the metrics, which is no page of a Sluice server.
ServerCounts read_counts(std::string_view page);

// Asks the server for its page, over the same client as the load. Errors: also those of fetch.
ServerCounts fetch_counts(LoadClient& client);

inline constexpr std::chrono::seconds kGiveUp{600};  // how long scenarios wait for an idle server
// Asks until no request holds or waits for memory; returns when that was seen. Errors: kIo if it
// takes longer than `limit`; Interrupted.
LoadTime wait_for_idle(LoadClient& client, std::chrono::seconds limit);

}  // namespace sluice::cli
