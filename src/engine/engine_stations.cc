// Files are checked before memory is taken, memory before weights are loaded.
#include "engine/engine_stations.h"

#include <exception>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "device/collectives.h"
#include "engine/ranks/rank_ports.h"
#include "engine/stations/speculative_drafts.h"
#include "engine/store/kv_store.h"
#include "engine/store/store_format.h"
#include "events/event_publisher.h"

namespace sluice {

EngineParts make_engine_parts(const EngineOptions& options) {
  if (options.timeline_path && options.timeline_ring) {
    fail(ErrorCode::kInvalidArgument, "timeline_path and timeline_ring exclude each other");
  }
  EngineParts parts;
  if (options.timeline_ring) parts.recorders.ring = std::make_unique<TimelineRing>();
  if (options.timeline_path) {
    parts.recorders.timeline = std::make_unique<Timeline>(*options.timeline_path);
  }
  DeviceOptions device_options;
  device_options.num_threads = options.num_threads.value_or(0);
  device_options.trace = parts.recorders.sink();
  parts.device = make_device(options.device, device_options);
  return parts;
}

namespace {

// Null if nobody shall be told.
std::unique_ptr<EventSink> make_event_sink(const KvEventsOptions& options) {
  if (!options.endpoint) return nullptr;
  return std::make_unique<EventPublisher>(
      EventPublisherOptions{.endpoint = *options.endpoint,
                            .replay_endpoint = options.replay_endpoint,
                            .topic = options.topic.value_or(""),
                            .buffer_steps = options.buffer_steps,
                            .send_limit = options.send_limit});
}

}  // namespace

EngineStations::EngineStations(const EngineOptions& options, EngineParts parts,
                               const OnProgress& on_progress)
    : recorders(std::move(parts.recorders)),
      now_ns(parts.now_ns ? std::move(parts.now_ns) : steady_ns) {
  const int64_t begin_ns = now_ns();
  load_model(options, parts, on_progress);
  const auto hash = rank->load_weights(options.seed, options.kv_store.dir.has_value(), on_progress);
  if (followers) followers->await_ready();
  front->close_checkpoint();
  make_kv(options, parts, hash);
  const EnginePlan& plan = front->plan();
  scheduler = std::make_unique<Scheduler>(plan.passes.scheduler, *kv);
  observer = std::make_unique<Observer>(rank->residency(), rank->policies(), plan.kv_layout.block);
  answers = std::make_unique<Answers>(front->config().eos_ids);
  grammars = std::make_unique<Grammars>(*front, now_ns, std::move(parts.before_masks));
  make_drafts(options, parts);
  solo = std::make_unique<Solo>(Solo::Stations{.front = *front,
                                               .rank = *rank,
                                               .kv = *kv,
                                               .observer = *observer,
                                               .scheduler = *scheduler,
                                               .answers = *answers});
  reports = std::make_unique<Reports>(Reports::Stations{.recorders = recorders,
                                                        .front = *front,
                                                        .rank = *rank,
                                                        .kv = *kv,
                                                        .scheduler = *scheduler,
                                                        .observer = *observer,
                                                        .answers = *answers,
                                                        .drafts = *drafts},
                                      now_ns() - begin_ns);
}

// Work may be pending after an error, and it uses memory that the stations free. A wait is tried
// also if another one throws.
EngineStations::~EngineStations() {
  const auto attempt = [](const auto& wait) {
    try {
      wait();
    } catch (const std::exception&) {
      // LlmEngine::step has thrown it to the caller already.
    }
  };
  attempt([this] { kv->flush(); });
  attempt([this] { rank->residency().synchronize(); });
  attempt([this] { rank->compute().synchronize(); });
  if (followers) followers->stop();
}

void EngineStations::load_model(const EngineOptions& options, EngineParts& parts,
                                const OnProgress& on_progress) {
  if (!parts.policies) parts.policies = make_policies(options);
  front = std::make_unique<Front>(options, *parts.device, *parts.policies, parts.adjust_plan);
  // A port that is taken is told before minutes of loading.
  if (!parts.events) parts.events = make_event_sink(options.kv_events);
  if (on_progress) on_progress({.stage = LoadProgress::Stage::kTokenizer});
  front->load_files(options);
  if (on_progress) on_progress({.stage = LoadProgress::Stage::kTokenizer, .share = 1});
  if (front->plan().num_ranks > 1) start_followers(options, parts);
  rank = std::make_unique<Rank>(std::move(parts.device), std::move(parts.policies), *front, options,
                                on_progress, followers ? followers->first_seat() : RankSeat());
}

// They load their weights beside the first rank. Each pass goes to them before the first rank runs
// it.
void EngineStations::start_followers(const EngineOptions& options, EngineParts& parts) {
  SLUICE_CHECK(parts.steps == nullptr, "a recorder beside {} ranks", front->plan().num_ranks);
  RankThreads::MakeDevice make = std::move(parts.make_device);
  if (!make) {
    make = [&options](int32_t of) { return make_device(device_of_rank(options.device, of)); };
  }
  followers = std::make_unique<RankThreads>(*front, options, std::move(make));
  messages = std::make_unique<StepRecorder>(
      [this](const StepMessage& message) { followers->send(message); });
  parts.steps = messages.get();
}

// One longest request must still fit beside all pins.
void EngineStations::make_kv(const EngineOptions& options, EngineParts& parts,
                             const std::optional<WeightsHash>& weights) {
  KvFollower* follower = &rank->follower();
  if (parts.steps != nullptr) {
    parts.steps->follow(rank->follower());
    rank->record_steps(parts.steps);
    follower = parts.steps;
  }
  const EnginePlan& plan = front->plan();
  const int32_t block_tokens = plan.kv_layout.block.block_tokens;
  const Policy& prefill = rank->policies().prefill();
  BlockManagerOptions blocks;
  blocks.num_blocks = plan.num_blocks;
  blocks.block_tokens = block_tokens;
  blocks.enable_prefix_caching = plan.caches_prefixes;
  blocks.scope_tokens = prefill.prefill_scope_tokens();
  blocks.tail_tokens = prefill.prefill_tail_tokens();
  kv = std::make_unique<KvStation>(
      KvStation::Options{
          .blocks = blocks,
          .max_pinned_blocks =
              plan.num_blocks - blocks_for_tokens(plan.max_model_len, block_tokens),
          .block_bytes = static_cast<int64_t>(plan.kv_layout.block_bytes_all_layers()),
          .on_host = offloads(plan),
          .has_states = plan.passes.limits.has_states,
          .snapshots = plan.snapshots,
          .snapshot_bytes = static_cast<int64_t>(front->config().states().slot_bytes())},
      *follower,
      options.kv_store.dir ? store_maker(options, parts.store_files, weights)
                           : KvStation::MakeBacking(),
      CacheEvents(std::move(parts.events), block_tokens, kv_medium()));
}

// With offload every block is in host memory, whether or not the device has a copy.
KvMedium EngineStations::kv_medium() const {
  const bool is_gpu = rank->device().kind() != DeviceKind::kCpu && !offloads(front->plan());
  return is_gpu ? KvMedium::kGpu : KvMedium::kCpu;
}

// Of blocks with the KV heads of all ranks.
std::unique_ptr<BlockPort> EngineStations::make_port() {
  auto port = rank->residency().make_port();
  if (!followers) return port;
  const EnginePlan& plan = front->plan();
  const int32_t num_parts =
      front->config().attention().num_kv_heads / plan.kv_layout.block.num_kv_heads;
  return std::make_unique<RankPorts>(RankPorts::Parts{.first = std::move(port),
                                                      .others = *followers,
                                                      .messages = *messages,
                                                      .num_copies = plan.num_ranks / num_parts});
}

// Of snapshots with the states of all ranks.
StatePort* EngineStations::make_state_port() {
  if (!followers) return rank->states();
  rank_states = std::make_unique<RankStates>(*rank->states(), *followers, *messages);
  return rank_states.get();
}

KvStation::MakeBacking EngineStations::store_maker(const EngineOptions& options, StoreFiles* files,
                                                   const std::optional<WeightsHash>& weights) {
  return [this, &options, files, &weights](BlockManager& blocks, StateSnapshots& snapshots) {
    const EnginePlan& plan = front->plan();
    const KvBlockShape& block = plan.kv_layout.block;
    const bool selects = rank->policies().prefill().rule(block).selects() ||
                         rank->policies().decode().rule(block).selects();
    const SparseOptions sparse = complete_sparse_options(options);
    KvStore::Parts parts{
        .blocks = blocks,
        .port = make_port(),
        .format = make_store_format({.weights = weights.value(),
                                     .config = front->config(),
                                     .layout = plan.kv_layout,
                                     .num_ranks = plan.num_ranks,
                                     .policies = rank->policies(),
                                     .sparse = sparse,
                                     .device = rank->device()}),
        .stores_decoded = !selects,
        .ns_per_row = [this](int64_t pos) { return scheduler->rates().ns_per_row(pos); },
        .files = files};
    if (rank->states() != nullptr) {
      parts.states = {.snapshots = &snapshots, .port = make_state_port()};
    }
    return std::make_unique<KvStore>(options.kv_store, std::move(parts));
  };
}

void EngineStations::make_drafts(const EngineOptions& options, EngineParts& parts) {
  const SpeculativeOptions resolved = resolve_speculative(options.speculative);
  if (resolved.method == SpeculativeMethod::kNone) {
    drafts = std::make_unique<Drafts>();
    return;
  }
  drafts = std::make_unique<SpeculativeDrafts>(
      SpeculativeDrafts::Stations{.rank = *rank,
                                  .kv = *kv,
                                  .observer = *observer,
                                  .answers = *answers,
                                  .grammars = *grammars,
                                  .now_ns = now_ns},
      Speculator::Parts{.options = resolved,
                        .limits = draft_limits(resolved, front->plan().passes.limits.max_seqs),
                        .vocab_size = front->config().vocab_size,
                        .source = std::move(parts.draft_source),
                        .forced = std::move(parts.forced_acceptance)});
}

}  // namespace sluice
