// DecodeGraphs: decode steps as graphs, one launch each instead of hundreds.
//
// Used by Runner where a step's shape is one of few: on a GPU a decode step is some ten launches
// per layer, which take the host longer than small steps take the device. A shape that is seen for
// the first time runs as it is (which also makes its kernels ready), the second time it is
// captured, and from then on launched; all three give the same bits, since they are the same
// kernels with the same arguments. Thread rule: the engine's thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "device/device.h"

namespace sluice {

// All that the launches of a decode step depend on. What else changes from step to step is read
// from the pass arrays by the kernels themselves.
struct DecodeShape {
  int64_t num_seqs = 0;       // rows, padding included
  int64_t max_kv_tokens = 0;  // what launches and the block table are made for
  int32_t walk_variant = 0;   // PassPlan::variant
  bool wants_top = false;     // the most likely tokens are wanted too
  bool wants_suppressed = false;

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside <=> for a pointer
  auto operator<=>(const DecodeShape&) const = default;
};

// Rows that a step of `num_seqs` sequences is padded to: 1, 2, 4, then multiples of 8.
int64_t padded_num_seqs(int64_t num_seqs, int64_t max_num_seqs);

// Tokens that a step whose longest sequence has `kv_tokens` is made for: powers of two from 1024
// and, from 4096 on, three steps between them, so that a short context does not pay for the
// launches of a long one. REQUIRES: kv_tokens <= limit.
int64_t padded_kv_tokens(int64_t kv_tokens, int64_t limit);

class DecodeGraphs {
 public:
  // Keeps at most `max_graphs` graphs and drops the one that was not used for longest; with 0 every
  // step runs as it is.
  DecodeGraphs(Stream& stream, int64_t max_graphs) : stream_(stream), max_graphs_(max_graphs) {}

  // Puts a step of `shape` on the stream. `enqueue` enqueues it, and must enqueue the same launches
  // whenever the shape is the same.
  // REQUIRES: the last step is done (a graph that is dropped must not be running).
  void run(const DecodeShape& shape, const std::function<void()>& enqueue);

  int64_t num_graphs() const;
  int64_t num_launches() const { return num_launches_; }

 private:
  struct Entry {
    std::unique_ptr<Graph> graph;  // null: seen once
    int64_t last_run = 0;
  };
  void make_room();

  Stream& stream_;
  const int64_t max_graphs_;
  std::map<DecodeShape, Entry> entries_;
  int64_t num_runs_ = 0;
  int64_t num_launches_ = 0;
};

}  // namespace sluice
