// TapSink: receives intermediate tensors of a pass, for comparison with a reference.
//
// The decoder calls it at fixed points; without a sink the cost is one branch. Names are those of
// docs/architecture.md: "embedding", "layer.3.q", "layer.3.attn_out" (before o_proj),
// "layer.3.attn_proj" (after), "layer.3.mlp_out", "layer.3.residual", "final_norm"; of
// experts "layer.3.router" (probabilities) and "layer.3.experts" (the chosen). The engine
// reads keys and values after rope ("layer.3.k", "layer.3.v") from the KV cache instead. Thread
// rule: called by the engine's thread; the data is ready in stream order.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor_view.h"
#include "device/device.h"

namespace sluice {

class TapSink {
 public:
  virtual ~TapSink() = default;

  // True if tensor `name` should be captured. The decoder asks before it calls `tap`.
  virtual bool wants(const std::string& name) const = 0;

  // Passes rows [row_begin, row_begin + rows.dim(0)) of tensor `name`, one tile of the pass per
  // call. The next op may overwrite `rows`: an implementation enqueues its copy on `stream`.
  virtual void tap(Stream& stream, const std::string& name, int64_t row_begin,
                   const TensorView& rows) = 0;
};

}  // namespace sluice
