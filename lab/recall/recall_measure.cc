// Oracle and controls from true masses, estimators from the rig's ops; all are judged by the truth.
#include "lab/recall/recall_measure.h"

#include <algorithm>

#include "core/error.h"
#include "eval/random.h"
#include "ops/reference/softmax_mass.h"

namespace sluice::lab {

using namespace eval;  // pictures and random numbers

namespace {

// The places of the methods; estimators follow.
enum Method : size_t { kTiles, kTokens, kWindow, kRandom, kFirstEstimator };

std::vector<std::string> method_names(const std::vector<Estimator>& estimators) {
  std::vector<std::string> names = {kOracleTiles, kOracleTokens, "window", "random"};
  for (const Estimator& estimator : estimators) names.push_back(estimator.name);
  return names;
}

// The mean of vectors [begin, end) of equal length.
std::vector<double> mean_of(const std::vector<std::vector<double>>& all, size_t begin, size_t end) {
  std::vector<double> mean(all[begin].size());
  for (size_t i = begin; i < end; ++i) {
    for (size_t j = 0; j < mean.size(); ++j) mean[j] += all[i][j];
  }
  for (double& value : mean) value /= static_cast<double>(end - begin);
  return mean;
}

// A seed for each list, so that no two lists share their random tiles.
uint64_t list_seed(uint64_t seed, int32_t layer, int32_t kv_head, int32_t q_tile) {
  const auto place = static_cast<uint64_t>((int64_t{layer} * 4096 + kv_head) * (1 << 20) + q_tile);
  return Random(seed).next() ^ Random(place).next();
}

}  // namespace

RecallMeasure::RecallMeasure(std::vector<RecallAsk> asks, int32_t num_layers, int32_t num_q_heads,
                             uint64_t seed)
    : asks_(std::move(asks)),
      num_layers_(num_layers),
      num_q_heads_(num_q_heads),
      seed_(seed),
      estimators_(all_estimators()),
      methods_(method_names(estimators_)),
      tally_(std::ssize(methods_) * std::ssize(asks_), int64_t{num_layers} * num_q_heads) {}

bool RecallMeasure::has(size_t method, size_t ask) const {
  if (!asks_[ask].is_coverage || method == kTiles) return true;
  return method >= kFirstEstimator && estimators_[method - kFirstEstimator].has_coverage();
}

int64_t RecallMeasure::cell(size_t method, size_t ask) const {
  return static_cast<int64_t>(method * asks_.size() + ask);
}

RecallMeasure::Truth RecallMeasure::truth_of(RecallRig& rig, int32_t q_tile) const {
  Truth truth;
  truth.tokens = rig.token_masses(q_tile);
  for (const auto& tokens : truth.tokens) truth.tiles.push_back(reference::tile_mass(tokens));
  const auto group = static_cast<size_t>(rig.shape().group());
  for (size_t head = 0; head < truth.tokens.size(); head += group) {
    truth.group_tokens.push_back(mean_of(truth.tokens, head, head + group));
    truth.group_tiles.push_back(mean_of(truth.tiles, head, head + group));
  }
  return truth;
}

// The list of a KV head serves the query heads of its group.
void RecallMeasure::add_choice(size_t method, size_t ask, int32_t layer, int32_t kv_head,
                               const Truth& truth, const RecallChoice& choice) {
  const auto group = static_cast<int32_t>(truth.tiles.size() / truth.group_tiles.size());
  for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const double mass = mass_of_choice(choice, truth.tiles[static_cast<size_t>(head)],
                                       truth.tokens[static_cast<size_t>(head)]);
    tally_.add(cell(method, ask), int64_t{layer} * num_q_heads_ + head, mass, choice.work());
  }
}

// As many single tokens as the tiles have, without forced ones.
void RecallMeasure::add_best_tokens(size_t ask, int32_t layer, int32_t kv_head, int32_t q_tile,
                                    const Truth& truth) {
  const auto group = static_cast<int32_t>(truth.tiles.size() / truth.group_tiles.size());
  const int64_t num_tiles = num_tiles_of(asks_[ask].share, q_tile);
  for (int32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const double mass = reference::mass_of_best_tokens(
        truth.group_tokens[static_cast<size_t>(kv_head)], truth.tokens[static_cast<size_t>(head)],
        num_tiles * kMaskTileTokens);
    tally_.add(cell(kTokens, ask), int64_t{layer} * num_q_heads_ + head, mass,
               static_cast<double>(num_tiles) / (q_tile + 1));
  }
}

void RecallMeasure::add_controls(int32_t layer, int32_t q_tile, const Truth& truth) {
  for (int32_t kv_head = 0; kv_head < std::ssize(truth.group_tiles); ++kv_head) {
    const auto true_masses = rounded_masses(truth.group_tiles[static_cast<size_t>(kv_head)]);
    const auto random = random_masses(q_tile, list_seed(seed_, layer, kv_head, q_tile));
    for (size_t ask = 0; ask < asks_.size(); ++ask) {
      const auto choose = [&](size_t method, const std::vector<uint32_t>& masses) {
        if (!has(method, ask)) return;
        add_choice(method, ask, layer, kv_head, truth,
                   {.tiles = choose_tiles(asks_[ask], q_tile, masses)});
      };
      choose(kTiles, true_masses);
      choose(kWindow, newest_masses(q_tile));
      choose(kRandom, random);
      if (has(kTokens, ask)) add_best_tokens(ask, layer, kv_head, q_tile, truth);
    }
  }
}

void RecallMeasure::add_estimator(RecallRig& rig, size_t method, int32_t layer, int32_t q_tile,
                                  const Truth& truth) {
  const Estimator& estimator = estimators_[method - kFirstEstimator];
  std::vector<RecallRule> rules;
  std::vector<size_t> asks;
  for (size_t ask = 0; ask < asks_.size(); ++ask) {
    if (!has(method, ask)) continue;
    rules.push_back(rule_of(asks_[ask], q_tile, estimator.columns));
    asks.push_back(ask);
  }
  if (rules.empty()) return;
  const RecallRig::Selections chosen = rig.select(estimator, q_tile, rules);
  for (size_t i = 0; i < asks.size(); ++i) {
    for (int32_t kv_head = 0; kv_head < std::ssize(chosen[i]); ++kv_head) {
      add_choice(method, asks[i], layer, kv_head, truth, chosen[i][static_cast<size_t>(kv_head)]);
    }
  }
}

void RecallMeasure::add_tile(RecallRig& rig, int32_t layer, int32_t q_tile) {
  const Truth truth = truth_of(rig, q_tile);
  SLUICE_CHECK(std::ssize(truth.tiles) == num_q_heads_, "{} heads", truth.tiles.size());
  add_controls(layer, q_tile, truth);
  for (size_t i = 0; i < estimators_.size(); ++i) {
    add_estimator(rig, kFirstEstimator + i, layer, q_tile, truth);
  }
}

std::optional<RecallSummary> RecallMeasure::summary(size_t method, size_t ask) const {
  if (!has(method, ask)) return std::nullopt;
  return tally_.summary(cell(method, ask));
}

double RecallMeasure::head_mean(size_t method, size_t ask, int32_t layer, int32_t q_head) const {
  return tally_.head_mean(cell(method, ask), int64_t{layer} * num_q_heads_ + q_head);
}

}  // namespace sluice::lab
