// LayerSpec: what one layer of a model is made of.
//
// Made by read_model_config, one for each layer; Weights and Decoder walk them, plans add up their
// sizes, the KV store names them. A kind of token mixer or of MLP is a value in model/layers with
// these members, which answer for one layer:
//
//   Weights                 its tensors in device memory
//   num_parameters          elements of its weights in a checkpoint, biases included
//   num_active_parameters   those of them that one row is multiplied with, or added to
//   products_per_row        multiply-adds of matrix products for one row
//   describe                adds the names and values that KV depends on (engine/store)
//   lay_out                 cuts its weights and lists its tensors, whose names begin with `prefix`
//   scratch_bytes           of RowTile::scratch for tiles of up to `num_rows` rows of `hidden`
//   enqueue                 an MLP: a tile's rows from x to out
//   hidden_channels, cut    an MLP: what several ranks divide; leaves the part of one (shard.h)
//   begin, attend, finish   a token mixer: before, for all rows of the pass at once, and after
//   reads_input_twice       a token mixer: whether `finish` reads RowTile::x as `begin` does
//
// A layer is then RMSNorm, mixer, RMSNorm, MLP, with a residual sum after both. Thread rule:
// values.
#pragma once

#include <variant>

#include "core/ids.h"
#include "model/layers/attention.h"
#include "model/layers/delta_net.h"
#include "model/layers/dense_mlp.h"
#include "model/layers/expert_mlp.h"

namespace sluice {

using TokenMixer = std::variant<Attention, DeltaNet>;
using Mlp = std::variant<DenseMlp, ExpertMlp>;

struct LayerSpec {
  TokenMixer mixer;
  Mlp mlp;
  // The number of the layer among those with KV, which KvLayout counts and the executor is called
  // with; not valid where the mixer keeps none.
  LayerId kv_layer;
  // The same of its layers with a state (state/state_layout.h).
  LayerId state_layer;
};

// The Weights of each kind, in the same order.
template <typename Kinds>
struct WeightsOfKinds;
template <typename... Kinds>
struct WeightsOfKinds<std::variant<Kinds...>> {
  using Type = std::variant<typename Kinds::Weights...>;
};
template <typename Kinds>
using WeightsOf = typename WeightsOfKinds<Kinds>::Type;

// Calls fn(kind, its weights). REQUIRES: the weights were laid out by this kind.
template <typename Kinds, typename Fn>
void visit_with_weights(const Kinds& kinds, const WeightsOf<Kinds>& weights, Fn&& fn) {
  std::visit(
      [&](const auto& kind) {
        fn(kind, std::get<typename std::decay_t<decltype(kind)>::Weights>(weights));
      },
      kinds);
}

}  // namespace sluice
