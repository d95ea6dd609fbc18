// Work: the least bytes and operations that a model needs, counted from its dimensions.
//
// Used by the commands of `sluice bench` to compute the share of a bound. Thread rule: plain
// values.
#pragma once

#include <string>

#include "sluice/inspect.h"

namespace sluice::cli {

// The dimensions of a model, and the work that follows from them.
struct Work {
  ModelSummary model;
  double table_elements;  // vocab_size * hidden_size: the embedding, and the head unless tied

  explicit Work(const EngineOptions& engine)
      : model(summarize_model(engine.model, engine.kv.cache_dtype)),
        table_elements(static_cast<double>(model.vocab_size) * model.hidden_size) {}

  // The least bytes of weights that a decode step reads: all except an embedding table that is not
  // also the output head, of which it reads one row per sequence, and except the experts that one
  // sequence does not choose. Several sequences may choose more.
  double decode_weight_bytes() const {
    constexpr double kTableBytes = 2;  // of an element: tables are bf16 in every model
    const auto all = static_cast<double>(model.active_weight_bytes);
    return model.tied_embeddings ? all : all - kTableBytes * table_elements;
  }

  // Operations of a prompt's prefill:
  //   2 * layer weights * tokens                          matrix products, of chosen experts
  //   2 * vocab_size * hidden_size                        logits of the last token
  //   4 * layers * q heads * head_dim * n (n + 1) / 2     causal attention: q k^T and p v, in
  //                                                       the layers of a hybrid that have it
  double prefill_flops(double num_tokens) const {
    const auto all = static_cast<double>(model.num_active_parameters);
    const double layers = all - table_elements * (model.tied_embeddings ? 1 : 2);
    const double pairs = num_tokens * (num_tokens + 1) / 2;
    const double attention = 4.0 * model.num_kv_layers * model.num_q_heads * model.head_dim * pairs;
    return 2 * layers * num_tokens + 2 * table_elements + attention;
  }

  // Bytes of KV that decoding reads for one request: the whole context once for every token after
  // the first, that is the sum of prompt_tokens + i over the steps i.
  double decode_kv_bytes(double prompt_tokens, double output_tokens) const {
    const double steps = output_tokens - 1;
    return static_cast<double>(model.kv_bytes_per_token) * steps * (prompt_tokens + steps / 2);
  }
};

}  // namespace sluice::cli
