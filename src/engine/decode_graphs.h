// DecodeGraphs: replays decode steps as graphs, one launch instead of hundreds.
//
// Used by Runner for steps of few shapes. On a GPU a decode step has about ten launches per layer,
// which take the host longer than a small step takes the device. The first step of a shape runs
// eagerly, which also loads its kernels; the second is captured, and later ones launch the graph.
// All three give the same bits: the same kernels with the same arguments. Thread rule: the engine's
// thread.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "device/device.h"

namespace sluice {

// Everything that the launches of a decode step depend on. Kernels read all other values from the
// pass arrays.
struct DecodeShape {
  int64_t num_seqs = 0;            // rows, padding included
  int64_t max_kv_tokens = 0;       // context that grids and the block table are sized for, padded
  int32_t walk_variant = 0;        // PassPlan::variant
  bool draws = true;               // ends with the sampler
  bool wants_top = false;          // some row returns its likeliest tokens
  bool wants_suppressed = false;   // some row has suppressed ids
  bool wants_adjustments = false;  // some row has penalties, biases or allowed ids

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside <=> for a pointer
  auto operator<=>(const DecodeShape&) const = default;
};

// Rows of a step of `num_seqs` sequences after padding: 1, 2, 4, then multiples of 8, at most
// max_num_seqs.
int64_t padded_num_seqs(int64_t num_seqs, int64_t max_num_seqs);

// Context length that a step is sized for if its longest sequence has `kv_tokens`: powers of two
// from 1024 on; above 4096 also three steps between two powers, so that a short context does not
// pay for the grids of a long one. At most `limit`. REQUIRES: kv_tokens <= limit.
int64_t padded_kv_tokens(int64_t kv_tokens, int64_t limit);

class DecodeGraphs {
 public:
  // Keeps at most `max_graphs` graphs and drops the least recently used one. With 0 every step runs
  // eagerly.
  DecodeGraphs(Stream& stream, int64_t max_graphs) : stream_(stream), max_graphs_(max_graphs) {}

  // Enqueues a step of `shape` on the stream. `enqueue` enqueues it, with the same launches
  // whenever the shape is the same; a graph launch does not call it.
  // REQUIRES: the previous step is done, since a dropped graph must not be running.
  void run(const DecodeShape& shape, const std::function<void()>& enqueue);

  int64_t num_graphs() const;                             // in the cache now
  int64_t num_launches() const { return num_launches_; }  // of graphs, since construction

 private:
  struct Entry {
    std::unique_ptr<Graph> graph;  // null: seen once, or dropped
    int64_t last_run = 0;          // value of num_runs_
  };
  void make_room();

  Stream& stream_;
  const int64_t max_graphs_;
  std::map<DecodeShape, Entry> entries_;  // every shape seen; few, since shapes are padded
  int64_t num_runs_ = 0;
  int64_t num_launches_ = 0;
};

}  // namespace sluice
