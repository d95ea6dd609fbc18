#include "cli/bench/serve/server_counts.h"

#include <charconv>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "cli/bench/serve/completion.h"
#include "cli/interrupt.h"
#include "core/error.h"

namespace sluice::cli {
namespace {

// Between two looks at an engine that should become idle.
constexpr std::chrono::milliseconds kPoll{2};

// The size of a block is a label, as in vLLM.
constexpr std::string_view kBlockLabel = "block_size=\"";

// The lines of a metric: labels in braces, a space, the value.
template <typename Visit>
void visit_samples(std::string_view page, std::string_view name, const Visit& visit) {
  const std::string start = fmt::format("\n{}{{", name);
  for (size_t at = page.find(start); at != page.npos; at = page.find(start, at)) {
    at += start.size();
    const std::string_view line = page.substr(at, page.find('\n', at) - at);
    const size_t space = line.rfind(' ');
    if (space == line.npos) continue;
    double value = 0;
    std::from_chars(line.data() + space + 1, line.data() + line.size(), value);
    visit(line.substr(0, space), value);
  }
}

// The sum of all samples whose labels have `label`.
int64_t sum_of(std::string_view page, std::string_view name, std::string_view label = {}) {
  double sum = 0;
  bool is_there = false;
  visit_samples(page, name, [&](std::string_view labels, double value) {
    is_there = true;
    if (labels.find(label) != labels.npos) sum += value;
  });
  if (!is_there) {
    fail(ErrorCode::kIo, "the page of metrics has no {}; is a Sluice server there, and loaded?",
         name);
  }
  return static_cast<int64_t>(sum);
}

int64_t block_tokens_of(std::string_view page) {
  int64_t tokens = 0;
  visit_samples(page, "vllm:cache_config_info", [&](std::string_view labels, double) {
    const size_t at = labels.find(kBlockLabel);
    if (at == labels.npos) return;
    std::from_chars(labels.data() + at + kBlockLabel.size(), labels.data() + labels.size(), tokens);
  });
  return tokens;
}

}  // namespace

// Gauges of the second reading stay as they are.
ServerCounts counted_between(const ServerCounts& before, const ServerCounts& after) {
  ServerCounts counts = after;
  counts.num_prompt_tokens -= before.num_prompt_tokens;
  counts.num_cached_tokens -= before.num_cached_tokens;
  counts.num_generated_tokens -= before.num_generated_tokens;
  counts.num_preemptions -= before.num_preemptions;
  counts.num_aborted -= before.num_aborted;
  return counts;
}

ServerCounts read_counts(std::string_view page) {
  return {.num_prompt_tokens = sum_of(page, "vllm:prompt_tokens_total"),
          .num_cached_tokens = sum_of(page, "vllm:prompt_tokens_cached_total"),
          .num_generated_tokens = sum_of(page, "vllm:generation_tokens_total"),
          .num_preemptions = sum_of(page, "vllm:num_preemptions_total"),
          .num_aborted = sum_of(page, "sluice:requests_aborted_total"),
          .num_running = sum_of(page, "vllm:num_requests_running"),
          .num_waiting = sum_of(page, "vllm:num_requests_waiting"),
          .used_kv_bytes = sum_of(page, "sluice:kv_bytes", "state=\"used\""),
          .block_tokens = block_tokens_of(page)};
}

ServerCounts fetch_counts(LoadClient& client) { return read_counts(fetch(client, "/metrics")); }

// The time is taken after the page has come, so a wait is at most a page and a pause too long.
LoadTime wait_for_idle(LoadClient& client, std::chrono::seconds limit) {
  const LoadTime end = LoadClock::now() + limit;
  while (true) {
    const ServerCounts now = fetch_counts(client);
    const LoadTime time = LoadClock::now();
    if (now.is_idle()) return time;
    if (time > end) {
      fail(ErrorCode::kIo, "after {} s {} requests still run, {} wait, and {} bytes of KV are held",
           limit.count(), now.num_running, now.num_waiting, now.used_kv_bytes);
    }
    if (interrupted()) throw Interrupted();
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace sluice::cli
