// RequestStats are those of the steps that gave the tokens, by a clock that is read outside as
// well.
#include <map>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::random_tokens;
using testing::sampled;
using testing::tiny_options;

// An engine that runs one request at a time, with a clock that ticks when it is read.
struct TickingEngine {
  TickingEngine() {
    EngineOptions options = tiny_options("llama-group1-default");
    options.max_num_seqs = 1;
    engine = std::make_unique<LlmEngine>(
        options, LlmEngine::Parts{.device = make_device("cpu", {.num_threads = 2}),
                                  .now_ns = [this] { return ++now_ns; }});
  }

  SequenceId add(uint64_t seed, OutputKind kind) {
    SamplingParams params = sampled(5, static_cast<int64_t>(seed));
    params.ignore_eos = true;
    params.output_kind = kind;
    return engine->add_request(random_tokens(40, seed), params);
  }

  int64_t now_ns = 0;
  std::unique_ptr<LlmEngine> engine;
};

TEST(RequestStatsTest, AreThoseOfTheStepsThatGaveTokens) {
  TickingEngine ticking;
  std::map<int64_t, RequestOutput> whole;
  std::map<int64_t, int64_t> first_ns;  // after the step that gave the first token
  ticking.add(1, OutputKind::kDelta);
  ticking.add(2, OutputKind::kDelta);
  while (ticking.engine->has_unfinished()) {
    const int64_t before_ns = ticking.now_ns;
    for (RequestOutput& output : ticking.engine->step()) {
      RequestOutput& sum = whole[output.request_id];
      const RequestStats stats = output.stats;
      sum.append(std::move(output));
      EXPECT_EQ(stats.num_generated_tokens, std::ssize(sum.token_ids));
      EXPECT_GT(stats.scheduled_ns, 0);
      if (sum.token_ids.empty()) continue;
      EXPECT_GT(stats.last_token_ns, before_ns);
      EXPECT_LE(stats.last_token_ns, ticking.now_ns);
      first_ns.try_emplace(sum.request_id, stats.last_token_ns);
      EXPECT_EQ(stats.first_token_ns, first_ns.at(sum.request_id));
    }
  }
  ASSERT_EQ(whole.size(), 2u);
  for (const auto& [id, output] : whole) {
    EXPECT_EQ(output.stats.num_generated_tokens, 5);
    EXPECT_LT(output.stats.scheduled_ns, output.stats.first_token_ns);
    EXPECT_LT(output.stats.first_token_ns, output.stats.last_token_ns);
  }
  EXPECT_GT(whole.at(1).stats.scheduled_ns, whole.at(0).stats.last_token_ns) << "it waited";
}

TEST(RequestStatsTest, ACancelledRequestKeepsWhatItHad) {
  TickingEngine ticking;
  const SequenceId running = ticking.add(1, OutputKind::kFinalOnly);
  const SequenceId waiting = ticking.add(2, OutputKind::kFinalOnly);
  ticking.engine->step();
  ticking.engine->step();
  ticking.engine->cancel_request(running);
  ticking.engine->cancel_request(waiting);
  const std::vector<RequestOutput> outputs = ticking.engine->step();
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].stats.num_generated_tokens, 2);
  EXPECT_GT(outputs[0].stats.last_token_ns, outputs[0].stats.first_token_ns);
  EXPECT_EQ(outputs[1].stats.num_generated_tokens, 0);
  EXPECT_EQ(outputs[1].stats.scheduled_ns, 0);
  EXPECT_EQ(outputs[1].stats.first_token_ns, 0);
}

}  // namespace
}  // namespace sluice
