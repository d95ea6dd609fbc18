// sluice-lab overlap: measures the share of a decode step's pages that earlier steps have read,
// and so what a cache of pages on the device could save.
//
// The engine decodes along a given text: each sampled token is replaced by the text's, and the
// lists are those of the policy. Runs on the main thread.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "cli/bench/measure.h"
#include "cli/engine_session.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/prompt_input.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "engine/llm_engine.h"
#include "io/file.h"
#include "io/json_type.h"
#include "io/model_file.h"
#include "lab/commands.h"
#include "lab/lists/hot_page_tally.h"
#include "lab/lists/list_file.h"
#include "lab/lists/list_recorder.h"
#include "lab/page_overlap.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using nlohmann::ordered_json;

constexpr int64_t kCacheBudgets[] = {1, 2, 4};  // sizes of the simulated caches, in budgets

// The result for one length and one budget.
struct OverlapRow {
  int64_t context_tokens = 0;
  int32_t budget_tokens = 0;
  int32_t page_tokens = 0;
  std::vector<OverlapSummary> layers;
  OverlapSummary all;
  int32_t num_places = 0;      // hot pages of each layer and KV head
  std::vector<HotShares> hot;  // by layer; empty: the engine keeps none
};

// The first num_tokens tokens of the text. Errors: kInvalidArgument if it is shorter.
std::vector<int32_t> read_tokens(const BenchOverlapCommand& command, const Tokenizer& tokenizer,
                                 int64_t num_tokens) {
  const std::filesystem::path file =
      command.file.empty() ? std::filesystem::path(command.engine.model) / "haystack.txt"
                           : std::filesystem::path(command.file);
  std::vector<int32_t> ids = tokenizer.encode(
      command.file.empty() ? read_model_file(file) : read_user_file("--file", file));
  if (std::ssize(ids) < num_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "{} has {} tokens, but {} are asked for; lower --lengths or --steps, or give a longer "
         "--file",
         file.string(), ids.size(), num_tokens);
  }
  ids.resize(static_cast<size_t>(num_tokens));
  return ids;
}

// Compares the lists of an engine's steps, with one PageOverlap per layer and KV head.
class StepComparer {
 public:
  // `record`: null, or what gets the lists of steps that count. `hot`: null, or what gets all lists
  // of an engine with hot pages.
  StepComparer(const ListRecorder& recorder, const LlmEngine& engine, RecordedLists* record,
               HotPageTally* hot)
      : recorder_(recorder),
        block_tokens_(engine.plan().kv_layout.block.block_tokens),
        rule_(recorder.rule(engine.plan().kv_layout.block)),
        record_(record),
        hot_(hot),
        heads_(engine.config().num_layers()),
        steps_(engine.config().num_layers()) {}

  // Reads the lists of the step that has just ended, whose row is at `position`. Pages of sinks and
  // window are left out, since every step reads them. `counts` is false for warm-up steps.
  void take(int64_t position, bool counts) {
    if (record_ && counts) begin_step(position);
    const PageRule& rule = rule_.page_rule;
    const int64_t first_recent = rule_.first_recent_page(position);
    for (size_t layer = 0; layer < heads_.size(); ++layer) {
      for (int64_t head = 0; head < recorder_.num_heads(); ++head) {
        if (std::ssize(heads_[layer]) == head) heads_[layer].emplace_back(cache_pages(rule));
        std::vector<int32_t> pages = recorder_.pages(LayerId(static_cast<int32_t>(layer)), 0, head);
        // A list of another length would be that of another step.
        SLUICE_CHECK(std::ssize(pages) == rule_.num_listed_pages(position), "{} pages at {}",
                     pages.size(), position);
        const std::vector<int32_t> listed = pages;
        std::erase_if(pages, [&](int32_t p) { return p < rule.sink_pages || p >= first_recent; });
        if (hot_) look_up(layer, static_cast<size_t>(head), listed, position, counts);
        if (record_ && counts) record(pages);
        if (pages.empty()) continue;  // sinks and window cover the whole text
        const StepOverlap overlap = heads_[layer][static_cast<size_t>(head)].add_step(pages);
        if (counts) steps_[layer].push_back(overlap);
      }
    }
  }

  // Means per layer and over all layers. Errors: kInvalidArgument if no step had a page to compare.
  OverlapRow row(int64_t context_tokens, int32_t budget_tokens) const {
    OverlapRow row{.context_tokens = context_tokens,
                   .budget_tokens = budget_tokens,
                   .page_tokens = rule_.page_tokens,
                   .layers = {},
                   .all = {}};
    std::vector<StepOverlap> all;
    for (const std::vector<StepOverlap>& steps : steps_) {
      if (steps.empty()) {
        fail(ErrorCode::kInvalidArgument,
             "--lengths: {} tokens are no more than every step reads; give more", context_tokens);
      }
      row.layers.push_back(summarize(steps));
      all.insert(all.end(), steps.begin(), steps.end());
    }
    row.all = summarize(all);
    return row;
  }

 private:
  // The pages of a list that hot pages may hold are those in sealed blocks.
  void look_up(size_t layer, size_t head, std::vector<int32_t> listed, int64_t position,
               bool counts) {
    const int64_t num_sealed = position / block_tokens_ * block_tokens_ / rule_.page_tokens;
    const int64_t first_recent = rule_.first_recent_page(position);
    std::erase_if(listed, [&](int32_t page) { return page >= num_sealed; });
    const auto num_chosen = std::ranges::count_if(listed, [&](int32_t page) {
      return page >= rule_.page_rule.sink_pages && page < first_recent;
    });
    hot_->add_list(layer, head, listed, num_chosen, counts);
  }

  // Counts a step of the record; the first one gives it its sizes.
  void begin_step(int64_t position) {
    if (record_->num_steps++ > 0) return;
    record_->num_layers = static_cast<int32_t>(heads_.size());
    record_->num_heads = static_cast<int32_t>(recorder_.num_heads());
    record_->first_pos = position;
    record_->page_tokens = rule_.page_tokens;
    record_->rule = rule_.page_rule;
    record_->rule.threshold_tokens = 0;
  }

  // Errors: kInvalidArgument if there was nothing to choose.
  void record(const std::vector<int32_t>& pages) const {
    if (std::ssize(pages) != rule_.page_rule.top_pages) {
      fail(
          ErrorCode::kInvalidArgument,
          "--record: decode had {} pages to choose {} from; give a longer text or a smaller budget",
          pages.size(), rule_.page_rule.top_pages);
    }
    record_->page_ids.insert(record_->page_ids.end(), pages.begin(), pages.end());
  }

  // Cache sizes in pages: multiples of the pages that a step selects by score.
  static std::vector<int64_t> cache_pages(const PageRule& rule) {
    std::vector<int64_t> sizes;
    for (const int64_t budgets : kCacheBudgets) sizes.push_back(budgets * rule.top_pages);
    return sizes;
  }

  const ListRecorder& recorder_;
  int64_t block_tokens_;
  SelectionRule rule_;
  RecordedLists* record_;
  HotPageTally* hot_;
  std::vector<std::vector<PageOverlap>> heads_;  // by layer, then head
  std::vector<std::vector<StepOverlap>> steps_;  // by layer, of all heads
};

// One sequence, no prefix cache, and room for the text and all steps.
EngineOptions engine_of(const BenchOverlapCommand& command, int64_t length, int32_t budget) {
  EngineOptions engine = command.engine;
  engine.sparse.topk_tokens = budget;
  engine.max_num_seqs = 1;
  engine.enable_prefix_caching = false;
  if (!engine.max_model_len) {
    engine.max_model_len = length + PageOverlap::kWindow + command.steps + 1;
  }
  return engine;
}

// Adds a request that will decode num_steps steps, and runs its prefill.
SequenceId prefill(LlmEngine& engine, std::vector<int32_t> prompt, int64_t num_steps) {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = static_cast<int32_t>(num_steps + 1);
  const SequenceId id = engine.add_request(std::move(prompt), params);
  // A long prompt takes several steps; the last one samples the first token.
  while (engine.stats().num_generated_tokens == 0) {
    if (interrupted()) throw Interrupted();
    engine.step();
  }
  return id;
}

// One engine: prefill of `length` tokens, kWindow warm-up steps, then the steps that count, whose
// lists go to `record` unless it is null.
OverlapRow measure(const BenchOverlapCommand& command, int64_t length, int32_t budget,
                   RecordedLists* record) {
  const EngineOptions options = engine_of(command, length, budget);
  std::unique_ptr<PolicyPair> policies = make_policies(options);
  // The recorder wraps the decode policy of `policies`, which the engine then owns.
  const ListRecorder& recorder = record_lists(*policies);
  const std::unique_ptr<LlmEngine> loaded = load_engine(options, std::move(policies));
  LlmEngine& engine = *loaded;
  const int64_t num_steps = PageOverlap::kWindow + command.steps;
  const std::vector<int32_t> text = read_tokens(command, engine.tokenizer(), length + num_steps);
  const SequenceId id = prefill(engine, {text.begin(), text.begin() + length}, num_steps);
  const int32_t num_places = engine.plan().offloaded.sizes.hot_pages.num_places;
  HotPageTally hot(engine.config().num_layers(), num_places);
  StepComparer comparer(recorder, engine, record, num_places > 0 ? &hot : nullptr);
  for (int64_t step = 0; step < num_steps; ++step) {
    if (interrupted()) throw Interrupted();
    if (num_places > 0 && step == PageOverlap::kWindow) hot.begin(engine.observations().decode);
    const int64_t position = length + step;
    // The row of this step is the text's token at `position`.
    engine.replace_last_token(id, text[static_cast<size_t>(position)]);
    engine.step();
    comparer.take(position, step >= PageOverlap::kWindow);
  }
  OverlapRow row = comparer.row(length, budget);
  if (num_places == 0) return row;
  hot.end(engine.observations().decode);
  row.num_places = num_places;
  row.hot = hot.layers();
  return row;
}

// Leaves out the cache of one budget, which equals the previous step.
std::vector<std::string> cells_of(const OverlapRow& row, const std::string& layer,
                                  const OverlapSummary& summary) {
  return {format_tokens(row.context_tokens),
          format_tokens(row.budget_tokens),
          layer,
          format_percent(summary.mean.previous),
          format_percent(summary.previous_p10),
          format_percent(summary.mean.last_4),
          format_percent(summary.mean.last_16),
          format_percent(summary.mean.caches[1]),
          format_percent(summary.mean.caches[2])};
}

HotShares sum_of(const std::vector<HotShares>& layers) {
  HotShares all;
  for (const HotShares& layer : layers) all.add(layer);
  return all;
}

ordered_json hot_json(const OverlapRow& row, const HotShares& hot) {
  return {{"places", row.num_places},     {"hits", hot.num_hits},
          {"misses", hot.num_misses},     {"lru_hits", hot.lru_hits},
          {"lru_misses", hot.lru_misses}, {"chosen_hit_share", hot.chosen_share()}};
}

// The hot pages of the engines that keep them; empty without any.
std::string hot_table(const std::vector<OverlapRow>& rows) {
  Table table({"context", "budget", "layer", "places", "engine", "LRU", "engine, by score"});
  for (const OverlapRow& row : rows) {
    const auto add = [&](const std::string& layer, const HotShares& hot) {
      table.add({format_tokens(row.context_tokens), format_tokens(row.budget_tokens), layer,
                 std::to_string(row.num_places), format_percent(hot.engine_share()),
                 format_percent(hot.lru_share()), format_percent(hot.chosen_share())});
    };
    for (size_t layer = 0; layer < row.hot.size(); ++layer) {
      add(std::to_string(layer), row.hot[layer]);
    }
    if (!row.hot.empty()) add("all", sum_of(row.hot));
  }
  if (table.num_rows() == 0) return "";
  return "\nhot pages: share of the listed pages in blocks on the host that the engine found in "
         "its\n"
         "places, an LRU cache of as many finds, and the engine found of those chosen by "
         "score.\n\n" +
         table.to_string();
}

// "layer" is null for all layers together; write_rows sets it for the others.
ordered_json json_of(const OverlapRow& row, const OverlapSummary& summary) {
  ordered_json caches = ordered_json::array();
  for (size_t i = 0; i < summary.mean.caches.size(); ++i) {
    caches.push_back({{"budgets", kCacheBudgets[i]}, {"hit_share", summary.mean.caches[i]}});
  }
  return {{"context_tokens", row.context_tokens},
          {"budget_tokens", row.budget_tokens},
          {"page_tokens", row.page_tokens},
          {"layer", nullptr},
          {"num_lists", summary.num_steps},
          {"previous", summary.mean.previous},
          {"previous_p10", summary.previous_p10},
          {"last_4", summary.mean.last_4},
          {"last_16", summary.mean.last_16},
          {"lru_caches", caches},
          {"hot_pages", nullptr}};
}

// A line per layer and one for all layers, for every length and budget.
void write_rows(const BenchOverlapCommand& command, const std::vector<OverlapRow>& rows) {
  Table table(
      {"context", "budget", "layer", "last step", "p10", "last 4", "last 16", "LRU 2x", "LRU 4x"});
  ordered_json results = ordered_json::array();
  for (const OverlapRow& row : rows) {
    for (size_t layer = 0; layer < row.layers.size(); ++layer) {
      table.add(cells_of(row, std::to_string(layer), row.layers[layer]));
      results.push_back(json_of(row, row.layers[layer]));
      results.back()["layer"] = layer;
      if (!row.hot.empty()) results.back()["hot_pages"] = hot_json(row, row.hot[layer]);
    }
    table.add(cells_of(row, "all", row.all));
    results.push_back(json_of(row, row.all));
    if (!row.hot.empty()) results.back()["hot_pages"] = hot_json(row, sum_of(row.hot));
  }
  const std::string model = model_name(command.engine.model);
  const std::string text = fmt::format(
      "overlap, {}, {}, {} steps after {}, pages of {}: share of the pages chosen by score that\n"
      "steps before have chosen too, or an LRU cache of 2 or 4 budgets holds (one of 1 budget "
      "holds\nthe last step). Sinks and window, {} and {} tokens, are not counted.\n\n{}{}",
      model, command.engine.sparse.policy, command.steps, PageOverlap::kWindow,
      rows.front().page_tokens, *command.engine.sparse.sink_tokens,
      *command.engine.sparse.recent_tokens, table.to_string(), hot_table(rows));
  write_bench(command.json,
              {{"bench", "overlap"},
               {"model", model},
               {"policy", command.engine.sparse.policy},
               {"steps", command.steps},
               {"warm_up_steps", PageOverlap::kWindow},
               {"results", results}},
              machine_name(command.engine), text);
}

}  // namespace

int bench_overlap(const BenchOverlapCommand& command) {
  if (!command.record.empty()) check_writable("--record", command.record);
  RecordedLists record{.model = model_name(command.engine.model)};
  std::vector<OverlapRow> rows;
  ProgressLine progress("measuring");
  const auto total = static_cast<double>(command.lengths.size() * command.budgets.size());
  for (const int64_t length : command.lengths) {
    for (const int32_t budget : command.budgets) {
      progress.update(static_cast<double>(rows.size()) / total,
                      fmt::format("{} of {}", format_tokens(budget), format_tokens(length)));
      rows.push_back(measure(command, length, budget, command.record.empty() ? nullptr : &record));
    }
  }
  progress.clear();
  write_rows(command, rows);
  if (!command.record.empty()) {
    write_file(command.record, encode_lists(record));
    write_message("lists: " + command.record);
  }
  return kExitOk;
}

}  // namespace sluice::lab
