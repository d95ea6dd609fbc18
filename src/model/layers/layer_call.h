// LayerCall: what the kinds of layers get to enqueue their part of a pass.
//
// Made by Decoder for each layer. Thread rule: the engine's thread; values that live for one call.
#pragma once

#include <cstdint>

#include "core/arena.h"
#include "core/ids.h"
#include "core/tensor_view.h"
#include "device/device.h"
#include "model/tap.h"
#include "ops/attention/attention.h"
#include "ops/delta/delta.h"
#include "ops/kv_blocks.h"
#include "state/state_records.h"

namespace sluice {

class Executor;
class HostExperts;
struct AttentionPass;

// Dual chunk attention in a pass with rows past the first chunk: the angles and the queries of the
// zones of keys (ops/rows/rope.h).
struct ZoneCall {
  TensorView own;      // f32 [num_rows, 2, padded head_dim / 2]: angles of LayerCall::q, which have
                       // the length factor that keys do not have
  TensorView before;   // angles of `q_before`
  TensorView far;      // angles of `q_far`
  TensorView no_rows;  // i32 [num_rows], all -1: nothing is written
  QueryZones queries;  // as LayerCall::q

  bool present() const { return queries.present(); }
};

// One layer of a pass. All views are device memory.
struct LayerCall {
  Stream& stream;
  LayerId layer;     // in the model; names taps
  LayerId kv_layer;  // LayerSpec::kv_layer
  float norm_eps = 0.0f;
  TapSink* taps = nullptr;  // or null

  // Of layers with KV.
  Executor& executor;
  const AttentionPass& pass;  // where the pass's KV goes and is
  KvBlocksView kv;            // where this layer's k and v go
  TensorView q;               // bf16 [num_rows, num_q_heads, padded head_dim], all rows of the pass
  TensorView cos_sin;         // f32 [num_rows, 2, padded head_dim / 2]
  ZoneCall zones;             // absent: one zone

  // Of layers with a state.
  DeltaRows state_rows;  // of the pass: first_row is 0
  DeltaStates states;    // of this layer
  DeltaRecords records;  // of this layer and the pass's rows; absent: none are kept

  // Of layers with experts: where their weights come from; null: they are on the device.
  HostExperts* experts = nullptr;

  // Captures rows as "layer.I.WHAT" if the sink wants them.
  void tap(const char* what, int64_t row_begin, const TensorView& rows) const;
};

// Consecutive rows that go through projections and MLP together.
struct RowTile {
  int64_t begin = 0;
  int64_t count = 0;
  TensorView x;    // bf16 [count, hidden]: the norm's output
  TensorView out;  // bf16 [count, hidden]: the next norm adds it to the residual stream
  Arena scratch;   // as many bytes as scratch_bytes of the layer's kind says
};

}  // namespace sluice
