// LogitEntries: what penalties and biases of one request come to for the tokens that it has so far.
//
// A member of Sequence, which appends each generated token; AdjustmentArrays copies the entries to
// where the op `sample` reads them. Depends on the request's parameters and tokens alone, so that
// preemption, batches and the place of KV change nothing. Thread rule: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sluice/sampling_params.h"

namespace sluice {

class LogitEntries {
 public:
  // Cost: linear in the prompt with a repetition penalty, in the biases otherwise.
  LogitEntries(const SamplingParams& params, std::span<const int32_t> prompt);

  // Counts a generated token. Does nothing without penalties.
  void append(int32_t token_id);

  // An entry for each token that has any, in the order of their first appearance; the meaning of
  // the numbers is that of LogitAdjustments (ops/sample.h).
  size_t size() const { return ids_.size(); }
  const std::vector<int32_t>& ids() const { return ids_; }
  const std::vector<float>& biases() const { return biases_; }
  const std::vector<float>& repetitions() const { return repetitions_; }
  const std::vector<float>& penalties() const { return penalties_; }

 private:
  // The place of the token's entry, a new one without effect if it has none.
  size_t place_of(int32_t token_id);

  float repetition_;
  double frequency_;
  double presence_;
  std::unordered_map<int32_t, size_t> places_;  // by token id
  std::vector<int32_t> ids_;
  std::vector<float> biases_;
  std::vector<float> repetitions_;
  std::vector<float> penalties_;
  std::vector<int32_t> counts_;  // in the output
};

}  // namespace sluice
