// Observations: bytes and loads per phase and layer must match the formulas. Timelines: each stream
// runs one op at a time, and loads run ahead of compute.
#include <map>

#include <gtest/gtest.h>

#include "engine/llm_engine.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "sluice/llm.h"
#include "support/offload_of.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

using testing::offload_of;
using testing::random_tokens;
using testing::sampled;
using testing::tiny_options;
using Json = nlohmann::json;

constexpr int64_t kPrompt = 256, kChunk = 64, kBlock = 16, kSlotBlocks = 4, kLayers = 2;
constexpr int64_t kChunks = kPrompt / kChunk;
constexpr int32_t kGenerated = 40;

EngineOptions offloaded(const std::string& mode, int32_t num_slots) {
  EngineOptions options = tiny_options("qwen3-group2-tied");
  options.kv.offload = testing::kv_offload_named(mode);
  options.kv.num_slots = num_slots;
  options.kv.slot_blocks = kSlotBlocks;
  options.kv.block_size = kBlock;
  options.kv.host_bytes = 16 << 20;
  if (mode == "chunked") options.prefill_chunk_tokens = options.max_num_batched_tokens = kChunk;
  return options;
}

void run_one(LlmEngine& engine) {
  testing::run_jobs(engine, {{random_tokens(kPrompt, 1), sampled(kGenerated, 1)}});
}

LlmEngine make_engine(const EngineOptions& options) {
  return LlmEngine(options, {.device = make_device("cpu"), .policies = make_policies("full")});
}

TEST(Observers, PrefillMovesWhatTheFormulasSay) {
  for (const bool layerwise : {false, true}) {
    LlmEngine engine = make_engine(offloaded(layerwise ? "layerwise" : "chunked", 2));
    run_one(engine);
    const PhaseObservations prefill = engine.observations().prefill;
    const auto token_bytes = static_cast<int64_t>(engine.plan().kv_layout.token_bytes()) / kLayers;
    EXPECT_EQ(prefill.num_steps, layerwise ? 1 : kChunks);
    EXPECT_EQ(prefill.num_tokens, kPrompt);
    // Chunk i takes i slots of 64 tokens for each layer. There are two slots, so the other loads
    // wait.
    EXPECT_EQ(prefill.num_loads, layerwise ? 0 : kLayers * (1 + 2 + 3));
    EXPECT_EQ(prefill.num_slot_waits, layerwise ? 0 : 0 + (4 - 2) + (6 - 2));
    ASSERT_EQ(prefill.layers.size(), static_cast<size_t>(kLayers));
    for (const LayerObservations& layer : prefill.layers) {
      EXPECT_EQ(layer.h2d_bytes,
                layerwise ? 0 : kChunks * (kChunks - 1) / 2 * kChunk * token_bytes);
      EXPECT_EQ(layer.d2h_bytes, kPrompt * token_bytes) << "one copy of the KV";
      EXPECT_EQ(layer.density_selected, 1.0);
      EXPECT_EQ(layer.density_transferred, layerwise ? std::optional<double>() : 1.0);
    }
  }
}

TEST(Observers, DecodeMovesAllSealedBlocksEachStep) {
  LlmEngine engine = make_engine(offloaded("chunked", 2));
  run_one(engine);
  const PhaseObservations decode = engine.observations().decode;
  const auto block_bytes = static_cast<int64_t>(engine.plan().kv_layout.block_bytes());
  int64_t loaded_blocks = 0;
  for (int64_t tokens = kPrompt; tokens < kPrompt + kGenerated - 1; ++tokens) {
    loaded_blocks += tokens / kBlock;
  }
  EXPECT_EQ(decode.num_steps, kGenerated - 1) << "the first token comes from prefill";
  ASSERT_EQ(decode.layers.size(), static_cast<size_t>(kLayers));
  for (const LayerObservations& layer : decode.layers) {
    EXPECT_EQ(layer.h2d_bytes, loaded_blocks * block_bytes);
    EXPECT_EQ(layer.d2h_bytes, (kGenerated - 1) / kBlock * block_bytes);
    EXPECT_EQ(layer.density_transferred, 1.0);
  }
}

TEST(Observers, PhasesAddUpToTheCounters) {
  LlmEngine engine = make_engine(offloaded("chunked", 3));
  for (int i = 0; i < 2; ++i)
    run_one(engine);  // the second run finds most of its prompt on the host
  const Observations seen = engine.observations();
  const TransferCounters& counters = offload_of(engine).counters();
  EXPECT_EQ(seen.kv_offload, "chunked");
  EXPECT_EQ(seen.prefill.num_loads + seen.decode.num_loads, counters.num_loads);
  EXPECT_EQ(seen.prefill.num_copies + seen.decode.num_copies, counters.num_copies);
  const EngineStats stats = engine.stats();
  const auto sum = [](const std::vector<int64_t>& layers) { return layers[0] + layers[1]; };
  EXPECT_EQ(stats.kv_h2d_bytes, sum(counters.loaded_bytes));
  EXPECT_EQ(stats.kv_d2h_bytes, sum(counters.written_bytes));
  EXPECT_EQ(stats.num_slot_waits, seen.prefill.num_slot_waits + seen.decode.num_slot_waits);
  for (size_t i = 0; i < static_cast<size_t>(kLayers); ++i) {
    const LayerObservations &prefill = seen.prefill.layers[i], &decode = seen.decode.layers[i];
    EXPECT_EQ(prefill.h2d_bytes + decode.h2d_bytes, counters.loaded_bytes[i]);
    EXPECT_EQ(prefill.d2h_bytes + decode.d2h_bytes, counters.written_bytes[i]);
    EXPECT_EQ(prefill.density_transferred, 1.0);
  }
  EXPECT_EQ(seen.device_peak_bytes, engine.plan().memory.device_used_bytes());
}

TEST(Observers, ResidentKvHasNoLayersToShow) {
  LlmEngine engine = make_engine(tiny_options("qwen3-group2-tied"));
  run_one(engine);
  const Observations seen = engine.observations();
  EXPECT_EQ(seen.kv_offload, "off");
  EXPECT_EQ(seen.prefill.num_tokens, kPrompt);
  EXPECT_TRUE(seen.prefill.layers.empty());
}

struct Span {
  std::string name;
  double begin = 0, end = 0;  // microseconds
};
using Rows = std::map<std::string, std::vector<Span>>;

Rows read_timeline(const std::filesystem::path& path) {
  const Json json = Json::parse(slurp(path));
  std::map<int, std::string> names;
  Rows rows;
  for (const Json& event : json.at("traceEvents")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    rows[names.at(event.at("tid"))].push_back({event.at("name"), begin, begin + duration});
  }
  return rows;
}

std::vector<Span> named(const std::vector<Span>& spans, const std::string& name) {
  std::vector<Span> found;
  for (const Span& span : spans) {
    if (span.name == name) found.push_back(span);
  }
  return found;
}

class TimelineFile : public ::testing::Test {
 protected:
  // The timeline rows of a chunked prefill with four slots, without decode.
  Rows record() {
    EngineOptions options = offloaded("chunked", 4);
    options.timeline_path = (directory_.path() / "timeline.json").string();
    LLM llm(options);
    llm.generate({random_tokens(kPrompt, 1)}, sampled(1, 1));
    llm.write_timeline();
    return read_timeline(*options.timeline_path);
  }

  TempDir directory_;
};

TEST_F(TimelineFile, EveryStreamRunsOneThingAtATime) {
  constexpr double kRounding = 0.002;  // times are printed to the nanosecond
  const Rows rows = record();
  std::vector<std::string> names;
  for (const auto& [name, spans] : rows) {
    names.push_back(name);
    for (size_t i = 1; i < spans.size(); ++i) {
      EXPECT_LE(spans[i - 1].end, spans[i].begin + kRounding) << name << " " << spans[i].name;
    }
  }
  EXPECT_EQ(names, (std::vector<std::string>{"compute", "engine", "slot 0", "slot 1", "slot 2",
                                             "slot 3", "write-back"}));
  EXPECT_EQ(named(rows.at("engine"), "prefill").size(), static_cast<size_t>(kChunks));
}

// Chunk i makes i loads for each layer; loads take the slots in turn. Attention runs over each
// loaded slot and then over the chunk itself.
TEST_F(TimelineFile, LoadsOfTheNextLayerBeginBeforeTheLayerIsDone) {
  const Rows rows = record();
  std::vector<std::vector<Span>> copies;
  for (int slot = 0; slot < 4; ++slot) {
    copies.push_back(named(rows.at("slot " + std::to_string(slot)), "copy h2d"));
  }
  const std::vector<Span> attention = named(rows.at("compute"), "attention");
  ASSERT_EQ(attention.size(), static_cast<size_t>(kLayers * (1 + 2 + 3 + 4)));
  size_t num_ahead = 0, load = 0, op = 0;
  for (size_t chunk = 0; chunk < static_cast<size_t>(kChunks); ++chunk) {
    if (chunk > 0) {
      const size_t first_of_next_layer = load + chunk;
      const std::vector<Span>& slot = copies[first_of_next_layer % 4];
      ASSERT_LT(first_of_next_layer / 4, slot.size()) << "a load is one copy";
      num_ahead += slot[first_of_next_layer / 4].begin < attention[op + chunk].end ? 1 : 0;
    }
    load += kLayers * chunk;
    op += kLayers * (chunk + 1);
  }
  EXPECT_GE(num_ahead, 1u);
}

TEST_F(TimelineFile, APathThatCannotBeWrittenIsAnErrorBeforeTheRun) {
  EngineOptions options = tiny_options("qwen3-group2-tied");
  for (const auto& path : {directory_.path() / "absent" / "timeline.json", directory_.path()}) {
    options.timeline_path = path.string();
    try {
      LLM llm(options);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace sluice
