// TraceRecorder: collects the taps of a traced request on the host, as f32.
//
// Used by LLM::trace (D3) and so by tools/align. Slow on purpose: every tap is a transfer of its
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
#include "model/tap.h"
#include "sluice/tap_tensor.h"

namespace sluice {

// Every name that a trace of a model with so many layers can give.
std::vector<std::string> tap_names(int32_t num_layers);

class TraceRecorder final : public TapSink {
 public:
  // `patterns` are shell patterns over tap names: "layer.*.attn_out".
  TraceRecorder(std::vector<std::string> patterns, Device& device)
      : patterns_(std::move(patterns)), device_(device) {}

  // Errors: kInvalidArgument naming the first pattern that no tap of the model matches.
  void check_patterns(int32_t num_layers) const;

  // Row 0 of the following taps is this position of the sequence.
  void begin_pass(int64_t first_pos) { first_pos_ = first_pos; }

  bool wants(const std::string& name) const override;
  void tap(Stream& stream, const std::string& name, int64_t row_begin,
           const TensorView& rows) override;

  // Reads keys and values (after rope) of a sequence back from its blocks, as "layer.i.k" and
  // "layer.i.v", each [num_tokens, num_kv_heads, head_dim].
  // `bytes_of` says where a block of a layer is, on the device or on the host.
  using BlockBytes = std::function<const std::byte*(LayerId layer, const SequenceBlock& block)>;
  void tap_kv(Stream& stream, const KvLayout& layout, const SequenceKv& kv,
              const BlockBytes& bytes_of);

  // Everything that was tapped, by name. REQUIRES: the stream was waited for.
  std::vector<TapTensor> take();

 private:
  struct Piece {
    int64_t first_row = 0;
    Buffer data;  // pinned; outlives the transfer
    TensorView view;
  };
  Piece copy_to_host(Stream& stream, int64_t first_row, const TensorView& rows);

  std::vector<std::string> patterns_;
  Device& device_;
  int64_t first_pos_ = 0;
  std::map<std::string, std::vector<Piece>> pieces_;
  std::vector<TapTensor> kv_tensors_;
};

}  // namespace sluice
