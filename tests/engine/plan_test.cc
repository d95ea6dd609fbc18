// Memory plans of real model shapes on simulated machines; nothing is allocated. Plans that do not
// fit must name an option that helps.
#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/plan/engine_plan.h"
#include "engine/plan/stall_plan.h"
#include "io/model_directory.h"
#include "sluice/inspect.h"
#include "support/source_dir.h"
#include "support/tiny_models.h"

namespace sluice {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kGiB = size_t{1} << 30;

HostMemory machine(size_t total_bytes) {
  return {.total_bytes = total_bytes, .available_bytes = total_bytes - total_bytes / 16};
}

HostMemory container(size_t limit_bytes, size_t available_bytes) {
  return {.total_bytes = limit_bytes, .available_bytes = available_bytes, .is_limited = true};
}

EngineOptions shape_options(const std::string& name) {
  EngineOptions options;
  options.model = testing::source_dir() / "models" / name;
  options.device = "cpu";
  return options;
}

EnginePlan plan_on(const EngineOptions& options, const HostMemory& host) {
  const auto device = make_device("cpu", {.memory_limit_bytes = host.total_bytes});
  const ModelConfig config = read_model_config(ModelDirectory(options.model));
  return make_engine_plan(options, config, *device, *make_policies(options), host);
}

bool mentions(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

// Applies the option that a remedy names, in command-line form, to `options`.
void apply_remedy(const std::string& remedy, EngineOptions& options) {
  const std::string tail = " would be enough";
  ASSERT_TRUE(remedy.ends_with(tail)) << remedy;
  const size_t begin = remedy.rfind("--");
  const size_t space = remedy.find(' ', begin);
  const std::string name = remedy.substr(begin, space - begin);
  const std::string value = remedy.substr(space + 1, remedy.size() - tail.size() - space - 1);
  const bool is_mib = value.ends_with("M");
  const auto number = [&] { return std::stoll(value) * (is_mib ? int64_t{1} << 20 : 1); };
  if (name == "--max-num-seqs") {
    options.max_num_seqs = static_cast<int32_t>(number());
  } else if (name == "--kv-cache-bytes") {
    options.kv.cache_bytes = static_cast<size_t>(number());
  } else if (name == "--kv-host-bytes") {
    options.kv.host_bytes = static_cast<size_t>(number());
  } else if (name == "--kv-slot-blocks") {
    options.kv.slot_blocks = static_cast<int32_t>(number());
  } else if (name == "--max-num-batched-tokens") {
    options.max_num_batched_tokens = static_cast<int32_t>(number());
  } else if (name == "--max-model-len") {
    options.max_model_len = number();
  } else if (name == "--kv-offload") {
    options.kv.offload = testing::kv_offload_named(value);
  } else {
    FAIL() << "unexpected remedy: " << remedy;
  }
}

// Expects a plan that does not fit, a reason that contains `why`, and that the named option alone
// makes it fit.
void expect_remedy(EngineOptions options, const HostMemory& host, const std::string& why,
                   const std::string& option) {
  const EnginePlan plan = plan_on(options, host);
  EXPECT_FALSE(plan.memory.fits);
  const std::string& remedy = plan.memory.remedy;
  EXPECT_NE(remedy.find(why), std::string::npos) << remedy;
  EXPECT_NE(remedy.find(option + " "), std::string::npos) << remedy;
  apply_remedy(remedy, options);
  EXPECT_TRUE(plan_on(options, host).memory.fits) << remedy;
}

// 260 tails of 1024 tokens of this model take 14.2 GiB, its weights 14.2 GiB.
TEST(Plan, AutoFitsALongContextModelByItself) {
  const EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  ASSERT_EQ(options.kv.offload, KvOffload::kAuto) << "the default";
  for (const size_t gib : {18, 20, 24, 32, 64, 128}) {
    const EnginePlan plan = plan_on(options, machine(gib * kGiB));
    EXPECT_TRUE(plan.memory.fits) << gib << " GiB: " << plan.memory.remedy;
    EXPECT_LE(plan.memory.device_used_bytes() + plan.memory.pinned_used_bytes(), gib * kGiB);
    const bool flows = plan.kv_offload != KvOffload::kOff;
    EXPECT_EQ(mentions(plan.memory.warnings, "kv_offload is "), flows) << gib << ": not asked for";
    EXPECT_EQ(mentions(plan.memory.notes, "kv_offload is "), !flows) << gib;
    const bool whole = plan.max_model_len == 1010000;
    EXPECT_EQ(whole, gib >= 128) << plan.max_model_len << " tokens of " << gib << " GiB";
    EXPECT_EQ(mentions(plan.memory.warnings, "max_model_len is "), !whole) << gib;
  }
}

// The same start line has to work where memory is short, so this is no error.
TEST(Plan, AutoWarnsOfOffloadOptionsThatItDidNotNeed) {
  EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  options.max_model_len = 4096;
  options.kv.num_slots = 3;
  options.kv.host_bytes = 8 * kGiB;
  const EnginePlan roomy = plan_on(options, machine(128 * kGiB));
  ASSERT_EQ(roomy.kv_offload, KvOffload::kOff) << "else this shows nothing";
  EXPECT_TRUE(roomy.memory.fits);
  EXPECT_TRUE(mentions(roomy.memory.warnings, "kv_host_bytes, num_kv_slots: no effect"));
  options.kv.offload = KvOffload::kChunked;
  EXPECT_FALSE(mentions(plan_on(options, machine(128 * kGiB)).memory.warnings, "no effect"));
  options.kv = {};
  EXPECT_FALSE(mentions(plan_on(options, machine(128 * kGiB)).memory.warnings, "no effect"));
}

// Uses the available memory: more than the 74,752 tokens of a host tier of 4 GiB.
TEST(Plan, AutoUsesTheMemoryThereIs) {
  EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  options.kv.offload = KvOffload::kAuto;
  EXPECT_GT(plan_on(options, machine(24 * kGiB)).max_model_len, 80000);
  EXPECT_GT(plan_on(options, machine(48 * kGiB)).max_model_len, 400000);
}

// As when "layerwise" is asked for by name: it takes whole prompts.
TEST(Plan, AutoIsNeverLayerwiseWhenChunksWereAskedFor) {
  EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  options.max_model_len = 60000;
  options.kv.cache_bytes = kGiB;  // too small for one request
  const HostMemory host = machine(48 * kGiB);
  ASSERT_EQ(plan_on(options, host).kv_offload, KvOffload::kLayerwise) << "else this shows nothing";
  options.prefill_chunk_tokens = 16384;
  EXPECT_EQ(plan_on(options, host).kv_offload, KvOffload::kChunked);
}

// The pause would be that of a whole prompt.
TEST(Plan, AutoIsNeverLayerwiseWithALimitOfTheStall) {
  EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  options.max_model_len = 60000;
  options.kv.cache_bytes = kGiB;
  options.max_stall_ms = 2000;
  const EnginePlan plan = plan_on(options, machine(48 * kGiB));
  EXPECT_EQ(plan.kv_offload, KvOffload::kChunked);
  EXPECT_TRUE(mentions(plan.memory.warnings, "in chunks, as max_stall_ms asks"));
  options.kv.offload = KvOffload::kLayerwise;
  const EnginePlan layerwise = plan_on(options, machine(48 * kGiB));
  EXPECT_EQ(layerwise.passes.scheduler.max_stall_ns, 0);
  EXPECT_TRUE(mentions(layerwise.memory.notes, "a layer-wise pass cannot be cut"));
}

// The length of span that hides the link, and the pause at the model's end: 1.7K tokens and 1.2 s
// for a 7B model on an H200.
TEST(Plan, SpansAreNotCutBelowABlockNorBelowWhatHidesTheLink) {
  const StallRates h200{.link_bytes_per_second = 50e9, .attention_flops = 600e12};
  const auto hiding = [&](const char* shape) {
    const EngineOptions options = shape_options(shape);
    const ModelConfig config = read_model_config(ModelDirectory(options.model));
    return tokens_that_hide_link(config, plan_on(options, machine(64 * kGiB)).kv_layout, h200);
  };
  EXPECT_NEAR(static_cast<double>(hiding("shapes/qwen2.5-7b-1m")), 1700, 50);
  EXPECT_NEAR(static_cast<double>(hiding("shapes/qwen3-0.6b")), 5800, 250);

  EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  options.kv.offload = KvOffload::kChunked;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 16384;
  options.max_model_len = 1000000;
  EnginePlan plan = plan_on(options, machine(256 * kGiB));
  EXPECT_EQ(plan.passes.scheduler.max_stall_ns, 0) << "not unless asked for";
  const ModelConfig config = read_model_config(ModelDirectory(options.model));
  options.max_stall_ms = 100;
  plan_stalls(options, config, h200, plan);
  EXPECT_EQ(plan.passes.scheduler.max_stall_ns, 100'000'000);
  EXPECT_EQ(plan.passes.scheduler.min_span_tokens, 2048) << "whole blocks of 1024";
  EXPECT_TRUE(mentions(plan.memory.notes,
                       "wait up to about 1.4 s for a prefill pass, of at least "
                       "2048 tokens"))
      << plan.memory.notes.back();
  // Without a link to hide it is a block; the time of one is not known on a CPU.
  plan_stalls(options, config, {}, plan);
  EXPECT_EQ(plan.passes.scheduler.min_span_tokens, 1024);
  EXPECT_TRUE(mentions(plan.memory.notes, "or for 1024 tokens of a prompt if these take longer"));
  // Never longer than a chunk.
  plan.passes.scheduler.prefill_chunk_tokens = 1024;
  plan_stalls(options, config, h200, plan);
  EXPECT_EQ(plan.passes.scheduler.min_span_tokens, 1024);
}

// A GPU computes chunks of 64 rows of a recurrent state at once, at multiples of 64.
TEST(Plan, SpansOfHybridsEndWhereChunksDo) {
  EngineOptions options;
  PassNeeds needs{.block_tokens = 16, .max_model_len = 4096, .has_states = true};
  const auto align = [&](DeviceKind kind) {
    const PassSizes sizes = choose_pass_sizes(options, plan_traits(kind), needs);
    return sizes.scheduler.state_align_tokens;
  };
  for (const int32_t chunk : {64, 100, 1000}) {
    options.prefill_chunk_tokens = chunk;
    EXPECT_EQ(align(DeviceKind::kCuda), 64) << chunk;
    EXPECT_EQ(align(DeviceKind::kCpu), 1) << "a row is computed for itself";
  }
  needs.scope_tokens = 96;
  EXPECT_EQ(align(DeviceKind::kCuda), 192);
  needs.scope_tokens = 1;
  options.prefill_chunk_tokens = 63;
  EXPECT_EQ(align(DeviceKind::kCuda), 1) << "no pass has a whole chunk";
  needs.kv_offload = KvOffload::kChunked;
  EXPECT_EQ(align(DeviceKind::kCuda), 64) << "passes are whole blocks";
  needs.has_states = false;
  EXPECT_EQ(align(DeviceKind::kCuda), 1);
}

// A pass that follows the clock is not shorter than a chunk, or no span would end at one.
TEST(Plan, AShortestSpanHoldsAChunkOfStates) {
  EngineOptions options = shape_options("shapes/qwen3.5-27b");
  options.kv.block_size = 16;
  options.max_stall_ms = 100;
  EnginePlan plan = plan_on(options, machine(256 * kGiB));
  const ModelConfig config = read_model_config(ModelDirectory(options.model));
  EXPECT_EQ(plan.passes.scheduler.min_span_tokens, 16);
  plan.passes.scheduler.state_align_tokens = 64;
  plan_stalls(options, config, {}, plan);
  EXPECT_EQ(plan.passes.scheduler.min_span_tokens, 64);
}

// States of a GPU's sequences are in its own memory, so the host's decides nothing; and they leave
// room for KV, as the default number of sequences does for other models.
TEST(Plan, StatesLeaveRoomWhateverTheHostHas) {
  EngineOptions options;
  options.load_format = LoadFormat::kDummy;
  options.max_model_len = 128 << 10;
  for (const char* shape : {"shapes/qwen3.5-27b", "shapes/qwen3.5-35b-a3b"}) {
    options.model = testing::source_dir() / "models" / shape;
    for (const size_t gib : {96, 512, 4096}) {
      const MemoryPlan plan =
          plan_memory(options, {.gpu_bytes = 80 * kGiB, .host_bytes = gib * kGiB});
      EXPECT_TRUE(plan.fits) << plan.remedy;
      EXPECT_EQ(plan.kv_offload, "off") << shape << " with " << gib;
      EXPECT_EQ(plan.max_model_len, 128 << 10);
      EXPECT_FALSE(mentions(plan.warnings, "weights_offload is experts")) << shape;
      EXPECT_TRUE(mentions(plan.notes, "of 256: the states of a sequence take")) << shape;
    }
  }
  // A number that is given stays.
  options.max_num_seqs = 64;
  EXPECT_TRUE(
      mentions(plan_memory(options, {.gpu_bytes = 80 * kGiB, .host_bytes = 96 * kGiB}).warnings,
               "weights_offload is experts"));
}

// The number of sequences is lowered only when nothing else helps, and not when it was given.
TEST(Plan, AutoLowersTheNumberOfSequencesAndSaysSo) {
  EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  options.kv.offload = KvOffload::kAuto;
  options.kv.cache_bytes = kGiB;  // so that a resident cache is too short
  options.max_model_len = 100000;
  const EnginePlan plan = plan_on(options, machine(26 * kGiB));
  ASSERT_TRUE(plan.memory.fits) << plan.memory.remedy;
  EXPECT_NE(plan.kv_offload, KvOffload::kOff);
  EXPECT_EQ(plan.max_model_len, 100000);
  EXPECT_LT(plan.passes.scheduler.max_num_seqs, 256);
  EXPECT_TRUE(mentions(plan.memory.notes, "instead of 256")) << plan.memory.notes.back();

  options.max_num_seqs = 256;
  const EnginePlan as_asked = plan_on(options, machine(26 * kGiB));
  EXPECT_FALSE(as_asked.memory.fits);
  expect_remedy(options, machine(26 * kGiB), "KV tails 14.", "--max-num-seqs");
}

TEST(Plan, RemediesNameOneOptionThatIsEnough) {
  EngineOptions options = shape_options("shapes/qwen2.5-7b-1m");
  options.kv.offload = KvOffload::kChunked;
  expect_remedy(options, machine(24 * kGiB), "KV tails 14.", "--max-num-seqs");

  options = shape_options("shapes/qwen3-0.6b");
  options.kv.offload = KvOffload::kOff;
  options.kv.cache_bytes = 1;
  expect_remedy(options, machine(16 * kGiB), "kv_cache_bytes is 1 byte, but one KV block of 256",
                "--kv-cache-bytes");
  options.kv.cache_bytes = 1024 * kGiB;
  expect_remedy(options, machine(16 * kGiB), "kv_cache_bytes is 1024.00 GiB, but",
                "--kv-cache-bytes");
  options.kv.cache_bytes = kGiB;
  options.max_model_len = 40000;
  expect_remedy(options, machine(16 * kGiB), "max_model_len is 40000, but the KV cache holds",
                "--kv-cache-bytes");

  options = shape_options("shapes/qwen3-0.6b");
  options.kv.offload = KvOffload::kChunked;
  options.max_num_seqs = 4;
  options.kv.host_bytes = 1024;
  expect_remedy(options, machine(16 * kGiB), "kv_host_bytes is 1.00 KiB, but", "--kv-host-bytes");
  options.kv.host_bytes = 1000 * kGiB;
  expect_remedy(options, machine(16 * kGiB), "the machine has 16.00 GiB", "--kv-host-bytes");
  options.kv.host_bytes.reset();
  options.kv.slot_blocks = 60000;
  expect_remedy(options, machine(16 * kGiB), "KV ring and stage", "--kv-slot-blocks");
}

TEST(Plan, NothingIsNamedWhereNothingHelps) {
  const EnginePlan plan = plan_on(shape_options("shapes/qwen3-8b"), machine(8 * kGiB));
  EXPECT_FALSE(plan.memory.fits);
  EXPECT_NE(plan.memory.remedy.find("no single option is enough"), std::string::npos)
      << plan.memory.remedy;
}

// The process itself needs some of a container's memory, and memory in use there is not available.
TEST(Plan, StaysWithinAContainer) {
  EngineOptions options = shape_options("needle");
  options.max_num_seqs = 8;
  for (const char* mode : {"off", "chunked", "layerwise", "auto"}) {
    options.kv.offload = testing::kv_offload_named(mode);
    const HostMemory host = container(400 * kMiB, 300 * kMiB);
    const EnginePlan plan = plan_on(options, host);
    ASSERT_TRUE(plan.memory.fits) << mode << ": " << plan.memory.remedy;
    EXPECT_LE(plan.memory.device_used_bytes() + plan.memory.pinned_used_bytes(), 240 * kMiB)
        << mode;
    EXPECT_EQ(plan.memory.host_memory_bytes, 400 * kMiB);
    EXPECT_TRUE(plan.memory.host_is_limited);
    EXPECT_TRUE(mentions(plan.memory.notes, "control group")) << mode;
  }
  options.kv.offload = KvOffload::kOff;
  const EnginePlan tiny = plan_on(options, container(60 * kMiB, 58 * kMiB));
  EXPECT_FALSE(tiny.memory.fits) << "a process of 60 MiB cannot hold this model";
  EXPECT_NE(tiny.memory.remedy.find("raise the container's memory limit"), std::string::npos)
      << tiny.memory.remedy;
}

TEST(Plan, WarnsOfTinySlotsAlone) {
  EngineOptions options = shape_options("needle");
  options.kv.offload = KvOffload::kLayerwise;
  EXPECT_TRUE(plan_on(options, machine(16 * kGiB)).memory.warnings.empty());
  options.kv.block_size = 16;
  options.kv.slot_blocks = 1;
  options.kv.num_slots = 3;
  const EnginePlan plan = plan_on(options, machine(16 * kGiB));
  EXPECT_TRUE(mentions(plan.memory.warnings, "slots of 16 tokens")) << plan.memory.warnings.size();
  EXPECT_TRUE(mentions(plan.memory.warnings, "--kv-slot-blocks 256 ")) << plan.memory.warnings[0];
  options.kv.slot_blocks = 256;
  EXPECT_TRUE(plan_on(options, machine(16 * kGiB)).memory.warnings.empty());
}

}  // namespace
}  // namespace sluice
