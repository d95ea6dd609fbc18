// The parts of a rank in order, and its passes.
#include "engine/stations/rank.h"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "attention/make_residency.h"
#include "core/error.h"
#include "engine/plan/memory_entries.h"
#include "ops/ops.h"
#include "ops/sample.h"

namespace sluice {
namespace {

// Tells how much of a long allocation is pinned. REQUIRES: `on_progress` outlives the result.
AllocationProgress report_pinning(const Rank::OnProgress& on_progress) {
  return [&on_progress](size_t done, size_t total) {
    if (!on_progress) return;
    on_progress({.stage = LoadProgress::Stage::kPinning,
                 .share = static_cast<double>(done) / static_cast<double>(total),
                 .total_bytes = total});
  };
}

}  // namespace

Rank::Rank(std::unique_ptr<Device> device, std::unique_ptr<PolicyPair> policies, const Front& front,
           const EngineOptions& options, const OnProgress& on_progress, const RankSeat& seat)
    : front_(front),
      seat_(seat),
      config_(shard_of(front.config(), seat.shard)),
      device_(std::move(device)) {
  const EnginePlan& plan = front.plan();
  compute_ = device_->make_stream(
      {.name = "compute", .num_threads = num_compute_threads(options, *device_)});
  prepare_ops(*compute_, op_needs(config_, plan, *policies));
  allocate_weights(on_progress);
  policies_ = std::move(policies);
  allocate_kv(on_progress);
  allocate_states();
  PairLimits limits = plan.policies;
  limits.share.rank = seat.shard.rank;
  policies_->initialize(*device_, plan.kv_layout, plan.num_blocks, limits);
  if (seat.group != nullptr) {
    collectives_ = make_collectives(*device_, *seat.group, seat.shard.rank);
  }
  decoder_ = std::make_unique<Decoder>(config_, *weights_, plan.passes.decoder, *device_, *compute_,
                                       collectives_.get());
  if (host_experts_) decoder_->use_host_experts(*host_experts_);
  if (states_) {
    states_->replay_with(
        [this](const StateReplay& replay) { decoder_->replay(*compute_, *states_, replay); });
  }
  runner_ =
      std::make_unique<Runner>(Runner::Parts{.device = *device_,
                                             .compute = *compute_,
                                             .decoder = *decoder_,
                                             .residency = *residency_,
                                             .states = states_.get(),
                                             .block_tokens = plan.kv_layout.block.block_tokens,
                                             .vocab_size = config_.vocab_size,
                                             .eos_token_ids = config_.eos_ids,
                                             .fixed_decode_shapes = plan.passes.fixed_decode_shapes,
                                             .max_decode_graphs = plan.passes.max_decode_graphs,
                                             .part_limit = seat.part_limit},
                               plan.passes.limits);
}

void Rank::allocate_weights(const OnProgress& on_progress) {
  const HostExpertSizes& sizes = front_.plan().experts;
  const ExpertPlace place = sizes.on_host() ? ExpertPlace::kPinned : ExpertPlace::kDevice;
  weights_ = std::make_unique<Weights>(config_, *device_, place, report_pinning(on_progress));
  if (!sizes.on_host()) return;
  host_experts_ = std::make_unique<HostExperts>(*device_, *compute_, weights_->experts(), sizes);
}

void Rank::allocate_kv(const OnProgress& on_progress) {
  residency_ = make_residency(*policies_, *device_, *compute_, residency_sizes(front_.plan()),
                              report_pinning(on_progress));
}

void Rank::allocate_states() {
  const StateLayout layout = config_.states();
  if (!layout.present()) return;
  const PassLimits& limits = front_.plan().passes.limits;
  const StatePool::Sizes sizes{.num_seats = limits.max_seqs,
                               .num_snapshots = front_.plan().snapshots.num_places,
                               .num_records = limits.max_record_rows()};
  states_ = std::make_unique<StatePool>(layout, sizes, *device_, *compute_);
  state_follower_ = std::make_unique<StateFollower>(*states_, *residency_);
}

KvFollower& Rank::follower() const {
  if (state_follower_) return *state_follower_;
  return *residency_;
}

std::optional<WeightsHash> Rank::load_weights(int64_t seed, bool wants_hash,
                                              const OnProgress& on_progress) {
  const auto on_weights = [&](double share) {
    if (on_progress) on_progress({.stage = LoadProgress::Stage::kWeights, .share = share});
  };
  const std::optional<Checkpoint>& checkpoint = front_.checkpoint();
  if (!checkpoint) {
    weights_->fill_dummy(static_cast<uint64_t>(seed), *compute_, on_weights);
    return hash_of_dummy_weights(seed);
  }
  std::optional<WeightsHasher> hasher;
  if (wants_hash) hasher.emplace(*checkpoint, weights_->sources());
  weights_->load(*checkpoint, *compute_, on_weights);
  return hasher ? std::optional(hasher->finish()) : std::nullopt;
}

// The message keeps the capacity of its spans and ids, so describing a step allocates nothing. What
// is expected comes as a vector of the scheduler's, with offloaded KV alone.
const StepMessage& Rank::describe(const Batch& batch, const KvTables& tables,
                                  std::vector<ExpectedSequence> expected, bool is_watched) {
  describe_pass(batch, message_);
  message_.is_watched = is_watched;
  message_.expected = std::move(expected);
  if (is_watched && seat_.part_limit != nullptr) seat_.part_limit->begin_pass();
  if (recorder_ != nullptr) recorder_->complete(message_, tables);
  return message_;
}

// Logits that are not finite come from the weights or their arithmetic; no option helps. All ranks
// have then run the pass. After any other error the others would wait for this one.
std::optional<std::span<const SampledToken>> Rank::run(const Batch& batch, const KvTables& tables,
                                                       std::vector<ExpectedSequence> expected,
                                                       const PassWatch* watch) {
  const StepMessage& message = describe(batch, tables, std::move(expected), watch != nullptr);
  try {
    return runner_->run({.message = message, .tables = tables}, batch, watch);
  } catch (const Error& error) {
    if (!is_logits_not_finite(error)) {
      if (seat_.group == nullptr) throw;
      seat_.group->fail(seat_.shard.rank, error.what());
      seat_.group->check();  // the first error of all ranks
      throw;
    }
    throw Error(ErrorCode::kModel,
                fmt::format("{}: its weights hold NaN or infinity, or overflow on the way; fetch "
                            "them again, or find the first layer at fault with `sluice trace`",
                            error.message()),
                front_.model_path());
  } catch (const std::exception& error) {  // of a callback of the watch
    if (seat_.group != nullptr) seat_.group->fail(seat_.shard.rank, error.what());
    throw;
  }
}

// Both are tried, also if the first one throws.
void Rank::synchronize() const {
  residency_->synchronize();
  compute_->synchronize();
}

}  // namespace sluice
