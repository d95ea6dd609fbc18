// Padded shapes of decode steps, and a cache of their graphs.
#include "engine/decode_graphs.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {
namespace {

// Above 8 sequences, steps of 8: the padding stays small and the number of graphs too.
constexpr int64_t kRowStep = 8;
// Shorter contexts share one shape.
constexpr int64_t kLeastKvTokens = 1024;
// Powers of two up to here: padding adds at most 2K tokens, which cost little.
constexpr int64_t kWholeOctaves = 4096;

}  // namespace

int64_t padded_num_seqs(int64_t num_seqs, int64_t max_num_seqs) {
  SLUICE_CHECK(num_seqs > 0 && num_seqs <= max_num_seqs, "{} of {}", num_seqs, max_num_seqs);
  int64_t rows = 1;
  while (rows < num_seqs && rows < kRowStep) rows *= 2;
  if (rows < num_seqs) rows = (num_seqs + kRowStep - 1) / kRowStep * kRowStep;
  return std::min(rows, max_num_seqs);
}

int64_t padded_kv_tokens(int64_t kv_tokens, int64_t limit) {
  SLUICE_CHECK(kv_tokens <= limit, "{} of {}", kv_tokens, limit);
  int64_t tokens = kLeastKvTokens;
  while (tokens < kv_tokens) tokens *= 2;
  if (tokens > kWholeOctaves) {
    const int64_t quarter = tokens / 8;  // a quarter of the octave (tokens / 2, tokens]
    tokens = (kv_tokens + quarter - 1) / quarter * quarter;
  }
  return std::min(tokens, limit);
}

int64_t DecodeGraphs::num_graphs() const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry.second.graph != nullptr; });
}

// First run of a shape: eager. Second: captured and launched. From then on: launched. A graph that
// was dropped is captured again at once, since its entry stays.
void DecodeGraphs::run(const DecodeShape& shape, const std::function<void()>& enqueue) {
  if (max_graphs_ == 0) return enqueue();
  const auto [it, is_new] = entries_.try_emplace(shape);
  it->second.last_run = ++num_runs_;
  if (is_new) return enqueue();
  if (!it->second.graph) {
    make_room();
    it->second.graph = stream_.capture(enqueue);
  }
  stream_.launch(*it->second.graph);
  ++num_launches_;
}

// Drops the least recently launched graph if the cache is full. Linear in the entries; runs only
// before a capture, which costs far more.
void DecodeGraphs::make_room() {
  if (num_graphs() < max_graphs_) return;
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (!it->second.graph) continue;
    if (oldest == entries_.end() || it->second.last_run < oldest->second.last_run) oldest = it;
  }
  // The entry stays: its kernels are loaded, so the next run can capture without an eager run.
  oldest->second.graph.reset();
}

}  // namespace sluice
