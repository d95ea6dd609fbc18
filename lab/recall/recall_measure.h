// RecallMeasure: the mass that every method captures, by what is asked of it.
//
// Used by `sluice-lab recall`. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/recall/recall_choices.h"
#include "lab/recall/recall_rig.h"
#include "lab/recall/recall_tally.h"

namespace sluice::lab {

// The methods that need true masses, before the estimators.
inline constexpr const char* kOracleTiles = "oracle tiles";
inline constexpr const char* kOracleTokens = "oracle tokens";

class RecallMeasure {
 public:
  // `asks`: densities first or not, in the order of the results. `seed`: of the random tiles.
  RecallMeasure(std::vector<RecallAsk> asks, int32_t num_layers, int32_t num_q_heads,
                uint64_t seed);

  // Measures one query tile of the layer that the rig holds, for all heads.
  void add_tile(RecallRig& rig, int32_t layer, int32_t q_tile);

  const std::vector<std::string>& methods() const { return methods_; }
  const std::vector<RecallAsk>& asks() const { return asks_; }
  int32_t num_layers() const { return num_layers_; }
  int32_t num_q_heads() const { return num_q_heads_; }

  // Empty where an ask has no meaning for a method: of controls, single tokens and
  // verticals no coverage is asked. REQUIRES of both: add_tile was called for every layer.
  std::optional<RecallSummary> summary(size_t method, size_t ask) const;
  // The captured mass of one query head, the mean over its query tiles. REQUIRES: not empty there.
  double head_mean(size_t method, size_t ask, int32_t layer, int32_t q_head) const;

 private:
  // True masses of one query tile: of each query head, and the mean of a KV head's group.
  struct Truth {
    std::vector<std::vector<double>> tokens, tiles;              // [q_head]
    std::vector<std::vector<double>> group_tokens, group_tiles;  // [kv_head]
  };
  Truth truth_of(RecallRig& rig, int32_t q_tile) const;
  bool has(size_t method, size_t ask) const;
  int64_t cell(size_t method, size_t ask) const;
  void add_choice(size_t method, size_t ask, int32_t layer, int32_t kv_head, const Truth& truth,
                  const RecallChoice& choice);
  void add_best_tokens(size_t ask, int32_t layer, int32_t kv_head, int32_t q_tile,
                       const Truth& truth);
  void add_estimator(RecallRig& rig, size_t method, int32_t layer, int32_t q_tile,
                     const Truth& truth);
  void add_controls(int32_t layer, int32_t q_tile, const Truth& truth);

  std::vector<RecallAsk> asks_;
  int32_t num_layers_;
  int32_t num_q_heads_;
  uint64_t seed_;
  std::vector<Estimator> estimators_;
  std::vector<std::string> methods_;
  RecallTally tally_;
};

}  // namespace sluice::lab
