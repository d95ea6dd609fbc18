// sluice-lab recall: measures how much of the softmax mass of full attention the tiles hold that
// each estimator of sparse prefill selects, on the activations of a model that reads a text.
//
// Queries and keys come from the taps of one prefill with full attention. True masses are exact, by
// double-precision softmax of f32 scores; estimators run on the CPU device by the ops of the
// engine. Runs on the main thread.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "attention/policy_pair.h"
#include "cli/bench/measure.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/policy_list.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "engine/llm_engine.h"
#include "io/file.h"
#include "io/json_type.h"
#include "io/model_file.h"
#include "lab/commands.h"
#include "lab/recall/recall_masks.h"
#include "lab/recall/recall_report.h"
#include "sluice/inspect.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using nlohmann::ordered_json;

// A text, and which of its query tiles are measured.
struct RecallText {
  std::string name;
  std::vector<int32_t> ids;
  int32_t num_candidates = 0;  // query tiles from `beyond` on
  std::vector<int32_t> q_tiles;
};

// The files in full, before the model is loaded.
std::vector<std::pair<std::string, std::string>> read_files(const BenchRecallCommand& command) {
  if (command.texts.empty()) {
    const auto path = std::filesystem::path(command.engine.model) / "haystack.txt";
    if (model_file_exists(path)) return {{"haystack.txt", read_model_file(path)}};
    fail(ErrorCode::kInvalidArgument, "{} has no haystack.txt; give a text with --text FILE",
         command.engine.model);
  }
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& text : command.texts) {
    files.emplace_back(std::filesystem::path(text).filename().string(),
                       read_user_file("--text", text));
  }
  return files;
}

// Tokens of a text unless --length says otherwise.
constexpr int64_t kDefaultLength = 8192;

// A request has room for a token after its text.
int64_t length_of(const BenchRecallCommand& command) {
  if (command.length) return *command.length;
  return std::min(kDefaultLength,
                  summarize_model(command.engine.model).max_position_embeddings - 1);
}

// The first tokens of a text and its whole query tiles from `beyond` on.
// Errors: kInvalidArgument if there is none.
RecallText prepare(const BenchRecallCommand& command, const Tokenizer& tokenizer,
                   const std::string& name, const std::string& file) {
  RecallText text{.name = name, .ids = tokenizer.encode(file), .num_candidates = 0, .q_tiles = {}};
  text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(length_of(command))));
  const auto first = (command.beyond + kMaskTileTokens - 1) / kMaskTileTokens;
  const auto end = std::ssize(text.ids) / kMaskTileTokens;
  if (first >= end) {
    fail(
        ErrorCode::kInvalidArgument,
        "{} gives {} tokens, which have no whole query tile of {} rows from {} on; lower --beyond, "
        "or give a longer text",
        name, text.ids.size(), kMaskTileTokens, command.beyond);
  }
  text.num_candidates = static_cast<int32_t>(end - first);
  text.q_tiles =
      sampled_tiles(static_cast<int32_t>(first), static_cast<int32_t>(end), command.query_tiles);
  return text;
}

// One sequence at a time, without a prefix cache: every position is computed.
EngineOptions engine_of(const BenchRecallCommand& command) {
  EngineOptions engine = command.engine;
  engine.enable_prefix_caching = false;
  // With --masks the options are those of the policies that it draws.
  if (!command.masks.empty()) engine.sparse = {};
  if (!engine.max_model_len) engine.max_model_len = length_of(command) + 1;
  return engine;
}

std::vector<RecallAsk> asks_of(const BenchRecallCommand& command) {
  std::vector<RecallAsk> asks;
  for (const int32_t percent : command.densities) asks.push_back({false, percent / 100.0});
  for (const int32_t percent : command.coverages) asks.push_back({true, percent / 100.0});
  return asks;
}

// Queries and keys of all layers, "layer.3.q" and "layer.3.k".
std::vector<TapTensor> capture(LlmEngine& engine, const std::vector<int32_t>& ids) {
  TraceRecorder recorder({"layer.*.q", "layer.*.k"}, engine.device());
  ProgressLine progress("reading the text");
  PassWatch watch;
  watch.should_cancel = interrupted;
  watch.on_progress = [&](int64_t rows) {
    progress.update_tokens(rows, std::ssize(ids), fmt::format("{} of {} tokens", rows, ids.size()));
  };
  if (!engine.solo().record_taps(ids, recorder, watch)) throw Interrupted();
  return recorder.take();
}

const TapTensor& tap_of(const std::vector<TapTensor>& taps, int32_t layer, const char* what) {
  const std::string name = fmt::format("layer.{}.{}", layer, what);
  const auto found = std::find_if(taps.begin(), taps.end(),
                                  [&](const TapTensor& tap) { return tap.name == name; });
  SLUICE_CHECK(found != taps.end(), "no tap {}", name);
  return *found;
}

// The width of a head is that of the taps, which may be padded; the scale is that of the model.
RecallShape shape_of(const LlmEngine& engine, const std::vector<TapTensor>& taps) {
  const TapTensor& q = tap_of(taps, 0, "q");
  const TapTensor& k = tap_of(taps, 0, "k");
  return {.num_tokens = q.shape[0],
          .num_q_heads = static_cast<int32_t>(q.shape[1]),
          .num_kv_heads = static_cast<int32_t>(k.shape[1]),
          .head_dim = static_cast<int32_t>(q.shape[2]),
          .scale = 1.0f / std::sqrt(static_cast<float>(engine.config().attention().head_dim))};
}

// The layer of --masks; by default the middle one.
int32_t masks_layer(const BenchRecallCommand& command, int32_t num_layers) {
  return command.masks_layer.value_or(num_layers / 2);
}

// Fails before anything is loaded if --masks cannot be drawn.
void check_masks(const BenchRecallCommand& command) {
  policy_list(command.policies, command.engine.sparse);
  check_writable("--masks", command.masks);
  const ModelSummary model = summarize_model(command.engine.model);
  const auto check_index = [](const char* option, int32_t index, int32_t count) {
    if (index < count) return;
    fail(ErrorCode::kInvalidArgument, "{}: {} is not from 0 to {}, which this model has", option,
         index, count - 1);
  };
  check_index("--masks-layer", masks_layer(command, model.num_layers), model.num_layers);
  check_index("--masks-head", command.masks_head, model.num_kv_heads);
  if (length_of(command) / kMaskTileTokens <= kMaxPictureTiles) return;
  fail(ErrorCode::kInvalidArgument, "--masks: the picture has room for {} tokens; lower --length",
       format_tokens(int64_t{kMaxPictureTiles} * kMaskTileTokens));
}

// Draws the layer that the rig holds.
void write_masks(const BenchRecallCommand& command, const RecallText& text, RecallRig& rig,
                 int32_t layer) {
  const auto policies = policy_list(command.policies, command.engine.sparse);
  MaskPicture picture = picture_of_masks(rig, layer, command.masks_head, policies);
  picture.title =
      fmt::format("Layer {}, KV head {}: mass and chosen tiles", layer, command.masks_head);
  picture.subtitle = fmt::format("{}{}, {} tokens of {}", model_name(command.engine.model),
                                 describe_weights(command.engine), text.ids.size(), text.name);
  for (const std::string& line : policy_lines(policies)) picture.subtitle += " · " + line;
  write_file(command.masks, mask_picture_svg(picture));
  write_message("masks: " + command.masks);
}

// `draws_masks`: also write --masks from this text.
void measure_text(const BenchRecallCommand& command, LlmEngine& engine, const RecallText& text,
                  bool draws_masks, RecallMeasure& measure) {
  const std::vector<TapTensor> taps = capture(engine, text.ids);
  RecallRig rig(shape_of(engine, taps), resolve_threads(command.engine.num_threads));
  ProgressLine progress("measuring " + text.name);
  const auto total =
      static_cast<double>(measure.num_layers()) * static_cast<double>(text.q_tiles.size());
  double done = 0;
  for (int32_t layer = 0; layer < measure.num_layers(); ++layer) {
    rig.load(tap_of(taps, layer, "q").data, tap_of(taps, layer, "k").data);
    if (draws_masks && layer == masks_layer(command, measure.num_layers())) {
      write_masks(command, text, rig, layer);
    }
    for (const int32_t q_tile : text.q_tiles) {
      if (interrupted()) throw Interrupted();
      progress.update(done++ / total, fmt::format("layer {}", layer));
      measure.add_tile(rig, layer, q_tile);
    }
  }
}

// "8192 tokens of haystack.txt (16 of 48 query tiles)".
std::string describe(const std::vector<RecallText>& texts) {
  std::vector<std::string> parts;
  for (const RecallText& text : texts) {
    parts.push_back(fmt::format("{} tokens of {} ({} of {} query tiles)", text.ids.size(),
                                text.name, text.q_tiles.size(), text.num_candidates));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

ordered_json json_of(const std::vector<RecallText>& texts) {
  ordered_json json = ordered_json::array();
  for (const RecallText& text : texts) {
    json.push_back({{"text", text.name},
                    {"tokens", text.ids.size()},
                    {"num_query_tiles", text.num_candidates},
                    {"measured_query_tiles", text.q_tiles}});
  }
  return json;
}

void write_results(const BenchRecallCommand& command, const std::vector<RecallText>& texts,
                   const RecallMeasure& measure) {
  const std::string model = model_name(command.engine.model);
  const std::string what =
      fmt::format("{}{}, {}, rows from {} on, {} layers of {} query heads", model,
                  describe_weights(command.engine), describe(texts), format_tokens(command.beyond),
                  measure.num_layers(), measure.num_q_heads());
  if (!command.svg.empty()) {
    write_file(command.svg, recall_svg(measure, what));
    write_message("picture: " + command.svg);
  }
  const std::string text = fmt::format(
      "recall, {}.\n"
      "Share of the softmax mass that the chosen tiles of {} x {} hold: mean over heads, their "
      "5th\n"
      "percentile, and the lost mass relative to oracle tiles. Tiles of sink and window are "
      "always\n"
      "taken and counted. Query tiles were chosen by hash.\n\n{}",
      what, kMaskTileTokens, kMaskTileTokens, recall_tables(measure));
  write_bench(command.json,
              {{"bench", "recall"},
               {"model", model},
               {"texts", json_of(texts)},
               {"beyond", command.beyond},
               {"layers", measure.num_layers()},
               {"q_heads", measure.num_q_heads()},
               {"results", recall_json(measure)}},
              machine_name(command.engine), text);
}

}  // namespace

int bench_recall(const BenchRecallCommand& command) {
  if (!command.svg.empty()) check_writable("--svg", command.svg);
  if (!command.masks.empty()) check_masks(command);
  const auto files = read_files(command);
  const EngineOptions options = engine_of(command);
  const std::unique_ptr<LlmEngine> engine = load_engine(options, make_policies(options));
  std::vector<RecallText> texts;
  for (const auto& [name, file] : files) {
    texts.push_back(prepare(command, engine->tokenizer(), name, file));
  }
  RecallMeasure measure(asks_of(command), engine->config().num_layers(),
                        engine->config().attention().num_q_heads,
                        static_cast<uint64_t>(options.seed));
  for (const RecallText& text : texts) {
    const bool draws_masks = !command.masks.empty() && &text == &texts.front();
    measure_text(command, *engine, text, draws_masks, measure);
  }
  write_results(command, texts, measure);
  return kExitOk;
}

}  // namespace sluice::lab
