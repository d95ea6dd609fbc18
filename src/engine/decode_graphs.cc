// Shapes, and the graph of each.
#include "engine/decode_graphs.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int64_t kRowStep = 8;
constexpr int64_t kLeastKvTokens = 1024;
constexpr int64_t kWholeOctaves = 4096;  // up to here a launch is for 2K tokens too many at most

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
    const int64_t quarter = tokens / 8;  // of the octave that ends here
    tokens = (kv_tokens + quarter - 1) / quarter * quarter;
  }
  return std::min(tokens, limit);
}

int64_t DecodeGraphs::num_graphs() const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry.second.graph != nullptr; });
}

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

void DecodeGraphs::make_room() {
  if (num_graphs() < max_graphs_) return;
  auto oldest = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (!it->second.graph) continue;
    if (oldest == entries_.end() || it->second.last_run < oldest->second.last_run) oldest = it;
  }
  // The shape stays known, since its kernels stay ready: next time it is captured at once.
  oldest->second.graph.reset();
}

}  // namespace sluice
