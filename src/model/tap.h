// TapSink: receives inner tensors of a pass, for comparison with a reference.
//
// The decoder calls it at fixed points; without a sink it costs nothing. Names are those of
// docs/architecture.md: "embedding", "layer.3.q", "layer.3.attn_out" (before o_proj),
// "layer.3.attn_proj" (after), "layer.3.mlp_out", "layer.3.residual", "final_norm". Keys and values
// after rope are read from the KV cache itself by the engine ("layer.3.k", "layer.3.v"). Thread
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

  // True if `name` is to be captured; asked before the name's tensor is offered.
  virtual bool wants(const std::string& name) const = 0;

  // Offers rows [row_begin, row_begin + rows.dim(0)) of tensor `name`; a pass gives them by tiles.
  virtual void tap(Stream& stream, const std::string& name, int64_t row_begin,
                   const TensorView& rows) = 0;
};

}  // namespace sluice
