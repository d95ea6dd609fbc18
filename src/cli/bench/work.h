// Work: the bytes and operations that a model cannot do without, counted from its dimensions.
//
// Used by the commands of `sluice bench` to say how near a measurement is to its bound.
// Thread rule: plain values.
#pragma once

#include <string>

#include "sluice/inspect.h"

namespace sluice::cli {

struct Work {
  ModelSummary model;
  double table_elements;  // of one embedding table

  explicit Work(const std::string& model_dir)
      : model(summarize_model(model_dir)),
        table_elements(static_cast<double>(model.vocab_size) * model.hidden_size) {}

  // Weights that a decode step reads: all but the rows of a table that is only looked up.
  double decode_weight_bytes() const {
    constexpr double kBytesPerElement = 2;  // bf16
    const auto all = static_cast<double>(model.num_parameters);
    return kBytesPerElement * (model.tied_embeddings ? all : all - table_elements);
  }

  // The products of every prompt token (two operations for each weight outside the tables), the
  // logits of the last one, and causal attention: half of all pairs, two products each.
  double prefill_flops(double num_tokens) const {
    const auto all = static_cast<double>(model.num_parameters);
    const double layers = all - table_elements * (model.tied_embeddings ? 1 : 2);
    const double pairs = num_tokens * (num_tokens + 1) / 2;
    const double attention = 4.0 * model.num_layers * model.num_q_heads * model.head_dim * pairs;
    return 2 * layers * num_tokens + 2 * table_elements + attention;
  }

  // KV that decoding reads for a request: its context once for every token after the first.
  double decode_kv_bytes(double prompt_tokens, double output_tokens) const {
    const double steps = output_tokens - 1;
    return static_cast<double>(model.kv_bytes_per_token) * steps * (prompt_tokens + steps / 2);
  }
};

}  // namespace sluice::cli
