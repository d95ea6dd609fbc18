// Rank: one device with all that a pass runs on: weights, policies, the memory of KV, the decoder
// and the runner.
//
// The first one is a station of LlmEngine; others follow it (engine/ranks). Everything that reads a
// clock or decides by load is outside of it (docs/architecture.md): what a rank does follows from
// the passes and the events of blocks that it is given. Thread rule: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "attention/policy_pair.h"
#include "attention/residency.h"
#include "device/collectives.h"
#include "device/device.h"
#include "device/host/part_limit.h"
#include "device/host/rank_group.h"
#include "engine/kv/state_follower.h"
#include "engine/plan/engine_plan.h"
#include "engine/runner.h"
#include "engine/stations/front.h"
#include "engine/step_message.h"
#include "engine/step_recorder.h"
#include "model/decoder.h"
#include "model/shard.h"
#include "model/weights.h"
#include "model/weights_hasher.h"
#include "sluice/progress.h"

namespace sluice {

// The place of a rank among several.
struct RankSeat {
  Shard shard;
  RankGroup* group = nullptr;       // null: there is one rank; and so is the next
  PartLimit* part_limit = nullptr;  // of all ranks
};

class Rank {
 public:
  using OnProgress = std::function<void(const LoadProgress&)>;

  // Takes all memory by the front's plan, which is that of each rank. Of several ranks it waits for
  // the others to have theirs. REQUIRES: the front and the group outlive the rank. Errors:
  // kDoesNotFit, kDevice; those of Collectives::share.
  Rank(std::unique_ptr<Device> device, std::unique_ptr<PolicyPair> policies, const Front& front,
       const EngineOptions& options, const OnProgress& on_progress, const RankSeat& seat = {});

  // Loads the front's checkpoint, or fills dummy weights. Their hash, if `wants_hash`. Errors:
  // kModel.
  std::optional<WeightsHash> load_weights(int64_t seed, bool wants_hash,
                                          const OnProgress& on_progress);

  // Every pass from now on is completed by this recorder, if not null. REQUIRES: it follows the
  // events of blocks, and outlives the rank's use.
  void record_steps(StepRecorder* recorder) { recorder_ = recorder; }
  // Whether a pass reads what is expected next.
  bool prefetches() const { return offloads(front_.plan()); }

  // The pass of the batch as a message; valid until the next call. `is_watched`: it can be
  // cancelled.
  const StepMessage& describe(const Batch& batch, const KvTables& tables,
                              std::vector<ExpectedSequence> expected, bool is_watched = false);
  // As Runner::run. Errors also: kModel for logits that are not finite. What a callback of the
  // watch throws ends the pass of this rank, and so the work of all ranks.
  std::optional<std::span<const SampledToken>> run(const Batch& batch, const KvTables& tables,
                                                   std::vector<ExpectedSequence> expected = {},
                                                   const PassWatch* watch = nullptr);
  // Of a rank after the first: runs its part of a pass.
  void follow(const Runner::Pass& pass) { runner_->follow(pass); }
  Runner& runner() { return *runner_; }
  const Runner& runner() const { return *runner_; }

  // Waits for all work and transfers.
  void synchronize() const;

  Device& device() const { return *device_; }
  Stream& compute() const { return *compute_; }
  const PolicyPair& policies() const { return *policies_; }
  Residency& residency() const { return *residency_; }
  // Of a model with states, else null.
  StatePool* states() const { return states_.get(); }
  // Of a model whose experts are in host memory, else null.
  HostExperts* host_experts() const { return host_experts_.get(); }
  // Who is told what happens to KV.
  KvFollower& follower() const;

 private:
  void allocate_weights(const OnProgress& on_progress);
  void allocate_kv(const OnProgress& on_progress);
  void allocate_states();

  const Front& front_;
  const RankSeat seat_;
  const ModelConfig config_;  // of its part of the model
  StepRecorder* recorder_ = nullptr;
  StepMessage message_;  // of the newest pass
  // In the order of construction; destroyed in reverse. REQUIRES: no work is left then.
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<HostExperts> host_experts_;  // null: experts are on the device
  std::unique_ptr<PolicyPair> policies_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<StatePool> states_;  // of a model with states, else null; and so is the next
  std::unique_ptr<StateFollower> state_follower_;
  std::unique_ptr<Collectives> collectives_;  // null: there is one rank
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace sluice
