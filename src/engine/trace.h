// TraceRecorder: collects the taps of a traced request in host memory, as f32.
//
// Used by LLM::trace, and through it by tools/align. Slow by design: every tap is a transfer of its
// own. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "device/device.h"
#include "kv/kv_layout.h"
#include "kv/sequence_kv.h"
#include "model/layer_spec.h"
#include "model/tap.h"
#include "sluice/tap_tensor.h"

namespace sluice {

// All tap names of a model of these layers.
std::vector<std::string> tap_names(const std::vector<LayerSpec>& layers);

class TraceRecorder final : public TapSink {
 public:
  // Shell patterns over tap names, such as "layer.*.attn_out". REQUIRES: the device outlives the
  // recorder.
  TraceRecorder(std::vector<std::string> patterns, Device& device)
      : patterns_(std::move(patterns)), device_(device) {}

  // Errors: kInvalidArgument naming the first pattern that no tap of the model matches.
  void check_patterns(const std::vector<LayerSpec>& layers) const;

  bool wants_nothing() const { return patterns_.empty(); }
  bool wants(const std::string& name) const override;
  void tap(Stream& stream, const std::string& name, int64_t row_begin,
           const TensorView& rows) override;

  // Copies keys and values (after rope) of a sequence from its blocks: "layer.i.k" and "layer.i.v",
  // each [num_tokens, num_kv_heads, head_dim]. `bytes_of` returns the address of a block of a layer
  // with KV, in device or host memory.
  using BlockBytes = std::function<const std::byte*(LayerId kv_layer, const SequenceBlock& block)>;
  void tap_kv(Stream& stream, const std::vector<LayerSpec>& layers, const KvBlockShape& shape,
              const SequenceKv& kv, const BlockBytes& bytes_of);

  // Returns all tensors, taps ordered by name, then keys and values; the recorder is empty
  // afterwards. REQUIRES: the stream was synchronized.
  std::vector<TapTensor> take();

 private:
  // One tile of one tensor.
  struct Piece {
    Buffer data;      // pinned; outlives the transfer
    TensorView view;  // of `data`, in the tensor's type and row shape
  };
  Piece copy_to_host(Stream& stream, const TensorView& rows);

  std::vector<std::string> patterns_;
  Device& device_;
  std::map<std::string, std::vector<Piece>> pieces_;  // by tap name, in the order of arrival
  std::vector<TapTensor> kv_tensors_;
};

}  // namespace sluice
