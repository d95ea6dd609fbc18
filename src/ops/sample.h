// Sampling on the device: from logits to one token per row, with log-probabilities.
//
// Used by engine/sampler. A row's token depends on its logits, its parameters, its seed and its
// position alone, so that a seeded request gives the same tokens alone and in any batch.
// Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "device/device.h"

namespace sluice {

// How the token of one row is chosen: an element of SampleArgs::rows, the same on the host and on
// devices. Kernels copy it in pieces of 16 bytes. The defaults never fail on finite logits.
struct alignas(16) SampleRow {
  float temperature = 0.0f;  // 0 means greedy (argmax, lowest id wins a tie)
  int32_t top_k = 0;         // 0 or less keeps all
  float top_p = 1.0f;        // in (0, 1]; 1 keeps all
  float min_p = 0.0f;        // in [0, 1]; 0 keeps all
  int64_t seed = 0;
  int64_t position = 0;  // index of the token to sample in its sequence
  int32_t mask = -1;     // row of SampleArgs::masks; -1: all tokens are allowed
};

// Changes to the logits of some rows before a token is chosen: what penalties and logit_bias come
// to. Row r has the entries [begin[r], begin[r + 1]), at most one for an id. The arrays may be in
// pinned memory, so that lists of any length need no transfer.
struct LogitAdjustments {
  TensorView begin;       // i32 [m + 1]
  TensorView ids;         // i32 [n]
  TensorView bias;        // f32 [n]; -inf: the token is never chosen; otherwise finite
  TensorView repetition;  // f32 [n], above 0; 1 changes nothing
  TensorView penalty;     // f32 [n], finite
  TensorView scratch;     // f32 [n], overwritten

  bool present() const { return begin.present(); }
};

struct SampleArgs {
  TensorView logits;      // f32 [m, vocab]
  TensorView rows;        // SampleRow [m], as u8 [m, sizeof(SampleRow)]
  TensorView suppressed;  // i32 [m, s] token ids that must not be chosen, -1 pads; or absent
  TensorView given;       // i32 [m]: the token of the row instead of a choice, -1: none; or absent
  // Tokens that rows may choose: bit id % 32 of word id / 32 of the row's mask is set. May be in
  // pinned memory, as the arrays of adjustments. Absent: SampleRow::mask is not read.
  TensorView masks;              // i32 [a, words], words = ceil(vocab / 32)
  LogitAdjustments adjustments;  // or absent

  TensorView token_ids;      // i32 [m], written
  TensorView logprobs;       // f32 [m], written: log-softmax of the raw logits at the choice
  TensorView top_token_ids;  // i32 [m, t] written, descending by log-probability; or absent
  TensorView top_logprobs;   // f32 [m, t] written; present exactly when top_token_ids is
};

// Draws one token for each row, and writes its log-probability and the best alternatives.
// Adjustments come first: an entry turns the logit x of its id into y - penalty with
// y = (x + bias) / repetition if x + bias > 0, (x + bias) * repetition otherwise; in f32, each
// operation rounded, results beyond the largest finite number cut to it. Tokens that a row's
// mask lacks count as suppressed. Log-probabilities are those of the logits without any of this.
// Filters in this order: suppressed, temperature, min-p, top-k, top-p (ties at a border are kept by
// ascending id; min-p and top-p weigh by the softmax of what the filters before them left). Then
// token = argmax(logit / temperature + g) over what is left, where g = -ln(-ln(u)) and u in (0, 1)
// comes from Philox4x32-10 keyed by seed, counter (position, id / 4), word id mod 4 (ops/philox.h):
// the Gumbel-max trick, which draws from the softmax without a sum that could depend on order.
// Shapes: logits [m, vocab], suppressed [m, s], masks [a, words], top_token_ids and top_logprobs
// [m, t] with t <= vocab (on CUDA at most 512); all else [m].
// Types: f32 logits and log-probabilities, i32 ids and words of masks; rows are SampleRow.
// Aliasing: no output overlaps anything. Logits of entries are overwritten on the way and have
// their values back at the end.
// Order: enqueue only; rows do not depend on each other. A row without entries, mask or given token
// has the same bits as in a call without these arguments.
// Errors: a row with NaN or +inf, without a finite logit, or with every finite one suppressed is an
// asynchronous error that names the row.
// Source: Salmon et al. 2011 (Philox); Maddison et al. 2014, arXiv 1411.0030 (Gumbel-max). The
// order of adjustments is vLLM's (docs.vllm.ai, vllm.v1.sample.sampler, 0.22: allowed ids, minimum
// of tokens, bias, repetition, frequency, presence); repetition is Keskar et al. 2019, arXiv
// 1909.05858, with multiplication below 0 as in transformers' RepetitionPenaltyLogitsProcessor.
void sample(Stream& stream, const SampleArgs& args);

// The text of the first two errors on every backend, with the row.
inline constexpr char kLogitsNotFinite[] = "row {} of the logits has NaN, +inf or no finite number";
// Whether an asynchronous error has this text: the cause is then the model, not the device.
bool is_logits_not_finite(const Error& error);

}  // namespace sluice
