// Passes as messages: a second rank that gets nothing but messages has the same KV, bit for bit,
// after each step, and computes the same logits. Whatever a pass read beside its message would
// show: a request, a block table, an event that is told too late or not at all.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "engine/speculation/speculative_engine.h"
#include "engine/step_recorder.h"
#include "support/run_bits.h"
#include "support/test_device.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::offloaded;
using testing::random_tokens;
using testing::speculative;
using testing::tiny_options;

std::unique_ptr<LlmEngine> make_engine(const EngineOptions& options, StepRecorder* steps) {
  LlmEngine::Parts parts{.device = testing::make_test_device()};
  parts.adjust_plan = testing::forced_graphs(options);
  parts.steps = steps;
  return std::make_unique<LlmEngine>(options, std::move(parts));
}

int32_t likeliest(const float* logits, size_t vocab_size) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab_size) - logits);
}

// An engine whose steps are recorded, and the rank of another one that replays them.
class Replay {
 public:
  explicit Replay(const EngineOptions& options)
      : recorder_([this](const StepMessage& message) { messages_.push_back(message); }),
        first_(make_engine(options, &recorder_)),
        second_(make_engine(options, nullptr)),
        mirror_(first_->plan().kv_layout.block.block_tokens) {}

  LlmEngine& first() { return *first_; }
  int64_t num_compared_blocks() const { return num_compared_blocks_; }
  int64_t num_tokens() const { return num_tokens_; }

  // One step of the first engine, and its passes on the second one's rank.
  void step() {
    std::vector<int32_t> tokens;
    for (const RequestOutput& output : first_->step()) {
      tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
    }
    std::vector<int32_t> replayed;
    for (; !messages_.empty(); messages_.pop_front()) replay(messages_.front(), replayed);
    for (const int32_t token : tokens) {
      EXPECT_NE(std::ranges::find(replayed, token), replayed.end()) << "token " << token;
      ++num_tokens_;
    }
    compare_kv();
  }

 private:
  void replay(const StepMessage& message, std::vector<int32_t>& tokens) {
    Rank& rank = second_->rank();
    mirror_.apply(message, rank.follower());
    const std::vector<float> logits = rank.runner().replay({.message = message, .tables = mirror_});
    const auto vocab_size = static_cast<size_t>(second_->config().vocab_size);
    ASSERT_EQ(logits.size(), static_cast<size_t>(message.num_sampled()) * vocab_size);
    for (size_t row = 0; row < logits.size(); row += vocab_size) {
      tokens.push_back(likeliest(logits.data() + row, vocab_size));
    }
  }

  // The full blocks of all running sequences, but for those of this step: a tail that it filled
  // leaves for the host with the events of the next message.
  void compare_kv() {
    first_->rank().synchronize();
    second_->rank().synchronize();
    const KvLayout& layout = first_->plan().kv_layout;
    std::map<SequenceId, int32_t> num_full;
    for (const auto& sequence : first_->scheduler().running()) {
      const SequenceKv& kv = sequence->kv;
      num_full[sequence->id] = kv.num_sealed_blocks();
      const int32_t count = std::min(num_full_[sequence->id], kv.num_sealed_blocks());
      for (const SequenceBlock& block : kv.blocks().first(static_cast<size_t>(count))) {
        for (const LayerId layer : layout.layers()) {
          const size_t num_bytes = layout.block_bytes();
          const std::byte* a = first_->residency().block_bytes(sequence->id, block, layer);
          const std::byte* b = second_->residency().block_bytes(sequence->id, block, layer);
          EXPECT_EQ(std::memcmp(a, b, num_bytes), 0) << "block " << block.id.value;
          ++num_compared_blocks_;
        }
      }
    }
    num_full_ = std::move(num_full);
  }

  std::deque<StepMessage> messages_;
  StepRecorder recorder_;
  std::unique_ptr<LlmEngine> first_, second_;
  KvMirror mirror_;
  std::map<SequenceId, int32_t> num_full_;  // blocks, by running sequence, after the last step
  int64_t num_compared_blocks_ = 0;
  int64_t num_tokens_ = 0;
};

SamplingParams greedy_params(int32_t max_tokens) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.output_kind = OutputKind::kDelta;
  return params;
}

// Requests that share prefixes, arrive while others run, and are cancelled; returns how many were
// preempted.
int64_t run(const EngineOptions& options, const std::string& what) {
  SCOPED_TRACE(what);
  Replay replay(options);
  const std::vector<int32_t> shared = random_tokens(70, 3);
  for (uint64_t i = 0; i < 5; ++i) {
    std::vector<int32_t> prompt(shared.begin(), shared.begin() + static_cast<int64_t>(i % 2) * 70);
    for (const int32_t token : random_tokens(40 + 31 * static_cast<int64_t>(i), i)) {
      prompt.push_back(token);
    }
    replay.first().add_request(prompt, greedy_params(60));
    for (int n = 0; n < 6; ++n) replay.step();
  }
  replay.first().cancel_request(SequenceId(3));
  while (replay.first().has_unfinished()) replay.step();
  EXPECT_GT(replay.num_compared_blocks(), 500);
  EXPECT_GT(replay.num_tokens(), 100);
  return replay.first().scheduler().num_preemptions();
}

TEST(StepMessages, ReplayHasTheSameBits) {
  if (!testing::testing_cpu()) GTEST_SKIP() << "the test reads device memory";
  const EngineOptions resident = tiny_options(testing::kSpeculationModel);
  run(resident, "resident");
  run(offloaded(resident, KvOffload::kChunked, 16), "chunked");
  run(offloaded(resident, KvOffload::kLayerwise, 16), "layerwise");
  EngineOptions few = resident;
  few.kv.cache_bytes = 26 * testing::kBlockBytes;
  few.max_model_len = 300;
  EXPECT_GT(run(few, "preempted"), 0);
  // States go to snapshots of the rank's own, and come from there.
  run(tiny_options("qwen35-hybrid-nested"), "hybrid");
  EngineOptions drafts = speculative(SpeculativeMethod::kSparse, 4);
  run(drafts, "sparse drafts");
  run(offloaded(drafts, KvOffload::kChunked, 16), "sparse drafts, chunked");
  // Of accepted rows a rank is told, and steps over its own records again.
  drafts.model = tiny_options("qwen35-hybrid-nested").model;
  run(drafts, "sparse drafts, hybrid");
}

TEST(StepMessages, AnotherVersionIsRefused) {
  KvMirror mirror(16);
  KvFollower nothing;
  StepMessage message;
  message.version = StepMessage::kVersion + 1;
  EXPECT_THROW(mirror.apply(message, nothing), Error);
}

}  // namespace
}  // namespace sluice
