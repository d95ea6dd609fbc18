// The full grid of offload configurations: each must give the bits of resident KV.
//
// Label slow; offload_test.cc is the sampled part that runs every time. Blocks of 16 to 256 tokens
// run on a tiny model of 512 positions and decode past two block borders where the positions
// suffice. Blocks of 1024 tokens need the longer context of the bundled model, and cross one border
// in decode.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "support/run_bits.h"
#include "support/source_dir.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::Job;
using testing::random_tokens;
using testing::sampled;

constexpr int32_t kTinyPositions = 512;
constexpr int32_t kNeedlePositions = 4096;

EngineOptions resident(int32_t block_tokens) {
  if (block_tokens < 1024) return testing::tiny_options("qwen3-group2-tied");
  EngineOptions options;
  options.model = (testing::source_dir() / "models/needle").string();
  options.skip_tokenizer_init = true;
  options.device = "cpu";
  options.num_threads = 2;
  options.max_num_seqs = 4;
  options.max_model_len = kNeedlePositions;
  options.kv.offload = KvOffload::kOff;
  options.kv.cache_bytes = 64 << 20;
  return options;
}

// Prompts of B-1, B, B+1 and 3B+7 tokens, as far as the model's positions go.
std::vector<Job> jobs_for(int32_t block_tokens) {
  const bool tiny = block_tokens < 1024;
  const int64_t positions = tiny ? kTinyPositions : kNeedlePositions;
  std::vector<Job> jobs;
  for (const int64_t length : {int64_t{block_tokens} - 1, int64_t{block_tokens},
                               int64_t{block_tokens} + 1, 3 * int64_t{block_tokens} + 7}) {
    if (length + 12 > positions) continue;
    const int64_t past_two_borders = std::min(2 * int64_t{block_tokens} + 12, positions - length);
    jobs.push_back({random_tokens(length, static_cast<uint64_t>(length)),
                    sampled(static_cast<int32_t>(tiny ? past_two_borders : 6), length)});
  }
  return jobs;
}

const std::vector<RequestOutput>& reference(int32_t block_tokens) {
  static std::map<int32_t, std::vector<RequestOutput>> outputs;
  auto found = outputs.find(block_tokens);
  if (found == outputs.end()) {
    found = outputs
                .emplace(block_tokens,
                         testing::run_engine(resident(block_tokens), jobs_for(block_tokens)))
                .first;
  }
  return found->second;
}

// Mode and chunk tokens (0: layer-wise), slots, slot blocks (0: a layer), block tokens, batch.
using GridCase = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;

class OffloadGrid : public ::testing::TestWithParam<GridCase> {};

TEST_P(OffloadGrid, EqualsResident) {
  const auto [chunk_tokens, num_slots, slot_blocks, block_tokens, batch] = GetParam();
  const int32_t positions = block_tokens < 1024 ? kTinyPositions : kNeedlePositions;
  EngineOptions options = resident(block_tokens);
  options.kv.cache_bytes.reset();
  options.kv.host_bytes = 96 << 20;
  options.kv.offload = chunk_tokens == 0 ? KvOffload::kLayerwise : KvOffload::kChunked;
  options.kv.block_size = block_tokens;
  options.kv.num_slots = num_slots;
  options.kv.slot_blocks = slot_blocks == 0 ? positions / block_tokens : slot_blocks;
  options.max_num_seqs = batch;
  if (chunk_tokens != 0) {
    options.prefill_chunk_tokens = chunk_tokens;
    options.max_num_batched_tokens = std::max(chunk_tokens, 2 * block_tokens);
  }
  testing::expect_all_same(testing::run_engine(options, jobs_for(block_tokens)),
                           reference(block_tokens), "against resident");
  if (num_slots != 3) return;
  options.kv.copy_bytes = int64_t{1} << 40;
  testing::expect_all_same(testing::run_engine(options, jobs_for(block_tokens)),
                           reference(block_tokens), "by kernels, against resident");
}

std::string name_of(const ::testing::TestParamInfo<GridCase>& param_info) {
  const auto [chunk_tokens, num_slots, slot_blocks, block_tokens, batch] = param_info.param;
  return (chunk_tokens == 0 ? "layerwise" : "chunk" + std::to_string(chunk_tokens)) + "_" +
         std::to_string(num_slots) + "x" +
         (slot_blocks == 0 ? "layer" : std::to_string(slot_blocks)) + "_block" +
         std::to_string(block_tokens) + "_batch" + std::to_string(batch);
}

using ::testing::Combine;
using ::testing::Values;

INSTANTIATE_TEST_SUITE_P(Tiny, OffloadGrid,
                         Combine(Values(0, 64, 512, 4096), Values(2, 3, 4, 8), Values(1, 4, 0),
                                 Values(16, 64, 256), Values(1, 3)),
                         name_of);

// A chunk is whole blocks, so 64 and 512 are 1024 here; a layer is four blocks.
INSTANTIATE_TEST_SUITE_P(Needle, OffloadGrid,
                         Combine(Values(0, 1024, 4096), Values(2, 3, 4, 8), Values(1, 0),
                                 Values(1024), Values(1, 3)),
                         name_of);

}  // namespace
}  // namespace sluice
