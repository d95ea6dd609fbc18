#include "server/metrics/metrics_page.h"

#include <fstream>

#include <unistd.h>

namespace sluice::metrics {
namespace {

void append_gauge(Exposition& page, std::string_view name, std::string_view help, double value) {
  page.gauge(name, help);
  page.sample(value);
}

void append_kv_bytes(Exposition& page, std::string_view place, const KvBytes& bytes) {
  const auto sample = [&](std::string_view state, int64_t value) {
    page.sample(static_cast<double>(value), Labels().add("place", place).add("state", state));
  };
  sample("used", bytes.used);
  sample("cached", bytes.cached);
  sample("free", bytes.free);
}

void append_transfers(Exposition& page, const KvTransfers& transfers) {
  page.counter("sluice:kv_transfer_bytes_total", "Bytes of KV moved between host and device.");
  page.sample(static_cast<double>(transfers.h2d_bytes), Labels().add("direction", "h2d"));
  page.sample(static_cast<double>(transfers.d2h_bytes), Labels().add("direction", "d2h"));
  page.counter("sluice:slot_waits_total", "Loads of KV that waited for a slot of their own pass.");
  page.sample(static_cast<double>(transfers.num_slot_waits));
  page.counter("sluice:hot_page_reads_total", "Pages that sparse decode listed with hot pages.");
  page.sample(static_cast<double>(transfers.num_hot_page_hits), Labels().add("result", "hit"));
  page.sample(static_cast<double>(transfers.num_hot_page_misses), Labels().add("result", "miss"));
}

void append_store(Exposition& page, const StoreCounts& store) {
  const auto count = [&](std::string_view name, std::string_view help, int64_t value) {
    page.counter(name, help, value);
  };
  count("sluice:store_read_bytes_total", "Bytes of files read from the KV store.",
        store.read_bytes);
  count("sluice:store_write_bytes_total", "Bytes of files written to the KV store.",
        store.written_bytes);
  count("sluice:store_skipped_blocks_total",
        "Blocks that were evicted from memory before they could be written to the KV store.",
        store.num_skipped_blocks);
  count("sluice:store_bad_files_total", "Files of the KV store that failed a check.",
        store.num_bad_files);
  count("sluice:store_write_errors_total", "Blocks that could not be written to the KV store.",
        store.num_write_errors);
}

void append_experts(Exposition& page, const ExpertReads& experts) {
  page.counter("sluice:expert_reads_total",
               "Experts of host memory that rows chose, in steps that keep some on the device.");
  page.sample(static_cast<double>(experts.num_hits), Labels().add("result", "hit"));
  page.sample(static_cast<double>(experts.num_misses), Labels().add("result", "miss"));
  page.counter("sluice:expert_bytes_total",
               "Bytes of experts moved to the device: single ones, and whole layers.");
  page.sample(static_cast<double>(experts.fetched_bytes), Labels().add("way", "fetched"));
  page.sample(static_cast<double>(experts.streamed_bytes), Labels().add("way", "streamed"));
}

void append_events(Exposition& page, const KvEventSums& events) {
  page.counter("sluice:kv_events_total", "KV events sent to routers.", events.num_sent);
  page.counter("sluice:kv_events_dropped_total",
               "KV events that were not sent, since too many waited; AllBlocksCleared and the "
               "blocks there were came in their place.",
               events.num_dropped);
}

// vLLM's names.
void append_drafts(Exposition& page, const DraftCounts& drafts) {
  const auto count = [&](std::string_view name, std::string_view help, int64_t value) {
    page.counter(name, help, value);
  };
  count("vllm:spec_decode_num_drafts_total", "Drafts that were verified.", drafts.num_drafts);
  count("vllm:spec_decode_num_draft_tokens_total", "Tokens of these drafts.",
        drafts.num_draft_tokens);
  count("vllm:spec_decode_num_accepted_tokens_total", "Of these, those that were accepted.",
        drafts.num_accepted_tokens);
}

void append_engine(Exposition& page, const EngineReading& engine) {
  append_gauge(page, "vllm:num_requests_running", "Requests that hold KV memory.",
               static_cast<double>(engine.num_running));
  append_gauge(page, "vllm:num_requests_waiting", "Requests that wait for KV memory.",
               static_cast<double>(engine.num_waiting));
  append_gauge(page, "vllm:kv_cache_usage_perc",
               "Share of the KV blocks in use, 0 to 1, of the memory that limits admission.",
               engine.kv_usage());
  // Gateways read num_gpu_blocks as what a replica has room for, so with KV offload it is the
  // number of the host's blocks.
  page.gauge("vllm:cache_config_info",
             "The sizes of the KV cache; num_gpu_blocks are those that limit admission.");
  page.sample(1, Labels()
                     .add("block_size", std::to_string(engine.block_tokens))
                     .add("num_gpu_blocks", std::to_string(engine.num_blocks))
                     .add("num_cpu_blocks", std::to_string(engine.num_host_blocks)));
  page.counter("vllm:num_preemptions_total", "Running requests that lost their KV memory.",
               engine.num_preemptions);
  if (engine.device_kv || engine.host_kv) {
    page.gauge("sluice:kv_bytes", "Bytes of KV memory, by place and state.");
    if (engine.device_kv) append_kv_bytes(page, "device", *engine.device_kv);
    if (engine.host_kv) append_kv_bytes(page, "host", *engine.host_kv);
  }
  if (engine.transfers) append_transfers(page, *engine.transfers);
  if (engine.store) append_store(page, *engine.store);
  if (engine.experts) append_experts(page, *engine.experts);
  if (engine.events) append_events(page, *engine.events);
  if (engine.drafts) append_drafts(page, *engine.drafts);
  page.histogram("vllm:iteration_tokens_total", "Tokens that a step of the engine computes.",
                 engine.step_tokens);
  append_gauge(page, "sluice:engine_last_progress_seconds",
               "Time since the engine last began a step or finished a part of one; 0 when idle.",
               engine.last_progress_s);
  page.counter("sluice:warnings_total", "Warnings since the model was loaded.",
               engine.num_warnings);
}

// The name is that of Prometheus' own clients.
void append_process(Exposition& page, const ProcessReading& process) {
  if (process.resident_bytes > 0) {
    append_gauge(page, "process_resident_memory_bytes", "Memory of the process.",
                 static_cast<double>(process.resident_bytes));
  }
  page.counter("sluice:log_lines_lost_total",
               "Lines of the log that could not be written to standard error.",
               process.num_lost_log_lines);
}

}  // namespace

double EngineReading::kv_usage() const {
  return num_blocks == 0 ? 0
                         : static_cast<double>(num_used_blocks) / static_cast<double>(num_blocks);
}

// Field 2 of statm: pages.
int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t num_pages = 0, num_resident = 0;
  if (!(statm >> num_pages >> num_resident)) return 0;
  return num_resident * ::sysconf(_SC_PAGESIZE);
}

std::string render_metrics(const MetricsSources& sources) {
  Exposition page(Labels().add("model_name", sources.model_name).add("engine", "0"));
  if (sources.engine != nullptr) append_engine(page, *sources.engine);
  if (sources.requests != nullptr) sources.requests->append_to(page);
  sources.http.append_to(page);
  append_process(page, sources.process);
  return page.text();
}

}  // namespace sluice::metrics
