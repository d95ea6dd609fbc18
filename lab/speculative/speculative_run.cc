// Measures by differences of the engine's counters around the decode steps of a run.
#include "lab/speculative/speculative_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "cli/bench/kv_run.h"
#include "cli/engine_session.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "engine/speculation/draft_limits.h"
#include "lab/lists/replayed_lists.h"
#include "lab/speculative/forced_pattern.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

// Drafts for forced acceptance where no pass drafts: there is no text to find them in.
class MadeUpSource final : public DraftSource {
 public:
  void draft(const DraftQuery& query, std::vector<int32_t>& draft) override {
    draft.assign(static_cast<size_t>(query.max_tokens), query.tokens.back());
  }
};

// Running totals of an engine.
StepCounts totals_of(const LlmEngine& engine) {
  const EngineStats stats = engine.stats();
  const Observations seen = engine.observations();
  StepCounts totals{.num_tokens = stats.num_generated_tokens,
                    .num_steps = seen.decode.num_steps,
                    .num_draft_tokens = seen.speculation.num_draft_tokens,
                    .num_accepted = seen.speculation.num_accepted_tokens,
                    .seconds = static_cast<double>(stats.decode_ns) * 1e-9,
                    .draft_seconds = static_cast<double>(stats.draft_ns) * 1e-9,
                    .h2d_bytes = 0};
  for (const PhaseObservations* phase : {&seen.decode, &seen.draft}) {
    for (const LayerObservations& layer : phase->layers) {
      totals.h2d_bytes += static_cast<double>(layer.h2d_bytes);
    }
  }
  return totals;
}

StepCounts difference(const StepCounts& after, const StepCounts& before) {
  return {.num_tokens = after.num_tokens - before.num_tokens,
          .num_steps = after.num_steps - before.num_steps,
          .num_draft_tokens = after.num_draft_tokens - before.num_draft_tokens,
          .num_accepted = after.num_accepted - before.num_accepted,
          .seconds = after.seconds - before.seconds,
          .draft_seconds = after.draft_seconds - before.draft_seconds,
          .h2d_bytes = after.h2d_bytes - before.h2d_bytes};
}

// Tokens that a request may generate. No draft reaches the last of them in a run, since drafts that
// max_tokens cuts short would count as a choice of the engine.
int32_t max_tokens_of(const SpeculativeWork& work) {
  return work.decode_tokens + 2 * (kMaxDraftTokens + 1);
}

// The prompt of a run.
std::vector<int32_t> prompt_of(const SpeculativeWork& work, const SpeculativeRow& row,
                               const LlmEngine& engine, int32_t run) {
  if (work.text.empty()) {
    return random_prompt(row.context_tokens, engine.config().vocab_size, 1);
  }
  constexpr size_t kStep = 1000;  // tokens between the beginnings of two prompts
  std::vector<int32_t> ids;
  for (size_t at = static_cast<size_t>(run) * kStep; std::ssize(ids) < row.context_tokens; ++at) {
    ids.push_back(work.text[at % work.text.size()]);
  }
  return ids;
}

// An engine whose verdicts may change between runs.
class Bench {
 public:
  Bench(const SpeculativeWork& work, const SpeculativeGroup& group)
      : work_(work), engine_(load_engine(group.engine, parts_of(group))) {}

  // Prefill, then steps until there are decode_tokens; the request is cancelled after them.
  StepCounts run(const SpeculativeRow& row, int32_t number) {
    // One request at a time, so its pattern is that of all verdicts.
    pattern_ = ForcedPattern(row.forced.value_or(0), number);
    SamplingParams params;
    params.temperature = work_.temperature;
    params.seed = number;
    params.ignore_eos = true;
    params.max_tokens = max_tokens_of(work_);
    const SequenceId id = engine_->add_request(prompt_of(work_, row, *engine_, number), params);
    step_until(engine_->stats().num_generated_tokens + 1);  // prefill gives the first token
    const StepCounts before = totals_of(*engine_);
    step_until(before.num_tokens + work_.decode_tokens);
    const StepCounts counts = difference(totals_of(*engine_), before);
    engine_->cancel_request(id);
    while (engine_->has_unfinished()) engine_->step();
    return counts;
  }

 private:
  LlmEngine::Parts parts_of(const SpeculativeGroup& group) {
    LlmEngine::Parts parts;
    if (!group.rows.front().forced) return parts;
    if (work_.replay) {
      const int64_t first_pos = group.rows.front().context_tokens;
      parts.policies = replaying_policies(group.engine, &*work_.replay, first_pos);
    }
    parts.forced_acceptance = [this](SequenceId, int64_t position) {
      return pattern_.accepts(position);
    };
    if (group.engine.speculative.method == SpeculativeMethod::kNgram) {
      parts.draft_source = std::make_unique<MadeUpSource>();
    }
    return parts;
  }

  void step_until(int64_t num_generated) {
    while (engine_->stats().num_generated_tokens < num_generated) {
      if (interrupted()) throw Interrupted();
      engine_->step();
    }
  }

  const SpeculativeWork& work_;
  ForcedPattern pattern_{0, 0};  // asked by the engine
  std::unique_ptr<LlmEngine> engine_;
};

// Runs [first, first + count) of a group's rows, after one to warm up for each prompt.
struct GroupVisit {
  int32_t first = 0;
  int32_t count = 0;
};

// By row: the rates of its runs.
using RunRates = std::vector<std::vector<double>>;

void visit(const SpeculativeWork& work, const GroupVisit& runs, SpeculativeGroup& group,
           RunRates& rates) {
  Bench bench(work, group);
  bench.run(group.rows.front(), runs.first);
  for (int32_t number = runs.first; number < runs.first + runs.count; ++number) {
    for (size_t i = 0; i < group.rows.size(); ++i) {
      SpeculativeRow& row = group.rows[i];
      const StepCounts counts = bench.run(row, number);
      rates[i].push_back(static_cast<double>(counts.num_tokens) / counts.seconds);
      row.counts.add(counts);
    }
  }
}

// Sizes for one request with its drafts. Checks that they can read the lists.
void complete(const SpeculativeWork& work, const ModelSummary& model, SpeculativeGroup& group) {
  const int64_t longest = group.rows.front().context_tokens + max_tokens_of(work);
  size_for_one_request(longest, model, &group.engine);
  group.engine.enable_prefix_caching = true;
  if (!work.replay || group.rows.front().is_plain) return;
  const int32_t block_tokens = plan_memory(group.engine).block_size;
  replay_bytes(group.engine, model, block_tokens, *work.replay, group.rows.front().context_tokens);
}

std::string label_of(const SpeculativeGroup& group) {
  const SpeculativeRow& row = group.rows.front();
  const std::string what = row.is_plain     ? "plain"
                           : row.num_drafts ? fmt::format("drafts of {}", *row.num_drafts)
                                            : "drafts of any length";
  return fmt::format("{}, {}", format_tokens(row.context_tokens), what);
}

void measure_all(const SpeculativeWork& work, std::vector<SpeculativeGroup>& groups) {
  const int32_t forward = (work.repeats + 1) / 2;
  const GroupVisit visits[] = {{.first = 0, .count = forward},
                               {.first = forward, .count = work.repeats - forward}};
  const double num_visits = (work.repeats > 1 ? 2.0 : 1.0) * static_cast<double>(groups.size());
  std::vector<RunRates> rates;
  for (const SpeculativeGroup& group : groups) rates.emplace_back(group.rows.size());
  ProgressLine progress("measuring");
  double done = 0;
  for (const GroupVisit& runs : visits) {
    for (size_t i = 0; i < groups.size() && runs.count > 0; ++i) {
      const size_t place = runs.first == 0 ? i : groups.size() - 1 - i;
      progress.update(done++ / num_visits, label_of(groups[place]));
      visit(work, runs, groups[place], rates[place]);
    }
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    for (size_t j = 0; j < groups[i].rows.size(); ++j) {
      groups[i].rows[j].tokens_per_second = spread_of(rates[i][j]);
    }
  }
}

}  // namespace

void StepCounts::add(const StepCounts& more) {
  num_tokens += more.num_tokens;
  num_steps += more.num_steps;
  num_draft_tokens += more.num_draft_tokens;
  num_accepted += more.num_accepted;
  seconds += more.seconds;
  draft_seconds += more.draft_seconds;
  h2d_bytes += more.h2d_bytes;
}

StepTimes StepCounts::times() const {
  const auto num_drafted = static_cast<double>(std::max<int64_t>(1, num_draft_tokens));
  return {.verify_seconds = (seconds - draft_seconds) / static_cast<double>(num_steps),
          .draft_seconds = draft_seconds / num_drafted};
}

LinkRates measure_groups(const SpeculativeWork& work, const ModelSummary& model,
                         std::vector<SpeculativeGroup>* groups) {
  for (SpeculativeGroup& group : *groups) complete(work, model, group);
  const EngineOptions& any = groups->front().engine;  // all run on the same device
  const LinkRates before = measure_link(any);
  measure_all(work, *groups);
  return larger(before, measure_link(any));
}

}  // namespace sluice::lab
