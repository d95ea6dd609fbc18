// Writes the table and the files of a needle test.
#include "eval/report.h"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "cli/engine_session.h"
#include "cli/options/named_policies.h"
#include "cli/table.h"
#include "cli/units.h"
#include "core/error.h"
#include "eval/colour_scale.h"
#include "eval/render_png.h"
#include "eval/request.h"
#include "io/file.h"
#include "text/build_info.h"
#include "text/json_text.h"
#include "text/observations_json.h"

namespace sluice::eval {

using namespace cli;  // what programs print and read

namespace {

std::string build_name() { return fmt::format("sluice {} ({})", build_version(), build_commit()); }

template <typename T>
// The index of `value`; the list's size if it is not there.
size_t index_of(const std::vector<T>& list, T value) {
  return static_cast<size_t>(std::find(list.begin(), list.end(), value) - list.begin());
}

std::string join_tokens(const std::vector<int64_t>& lengths) {
  std::string text;
  for (const int64_t length : lengths) text += (text.empty() ? "" : ", ") + format_tokens(length);
  return text;
}

// One answer; without the prompt, which is large (needle_prompts).
nlohmann::ordered_json item_json(const NeedleResult& result) {
  const NeedleItem& item = result.item;
  return {{"seed", item.seed},
          {"length", item.length_tokens},
          {"depth", item.depth_percent},
          {"key", item.key},
          {"expected", item.values},
          {"got", result.got},
          {"correct", result.correct},
          {"score", result.score},
          {"finish_reason", result.finish_reason},
          {"prompt_tokens", item.prompt_ids.size()},
          {"first_token_seconds", result.first_token_seconds},
          {"total_seconds", result.total_seconds}};
}

// What the page and the JSON list as settings, by name.
std::vector<std::pair<std::string, std::string>> settings_of(const NeedleReport& report) {
  const NeedleCommand& command = report.command;
  const EngineOptions& engine = command.engine;
  return {
      {"Model", model_name(engine.model)},
      {"Sparse policy", engine.sparse.policy},
      {"Sparse options", describe_sparse_options(engine.sparse)},
      {"KV offload", report.kv_offload},
      {"Lengths", join_tokens(command.lengths)},
      {"Questions per cell", fmt::format("{}", command.needles)},
      {"Kind", command.kind},
      {"Haystack", report.haystack_name},
      {"Seed", fmt::format("{}", engine.seed)},
      {"Block size", engine.kv.block_size ? fmt::format("{}", *engine.kv.block_size) : "default"},
      {"Prefix caching", engine.enable_prefix_caching ? "on" : "off"},
      {"Time", format_seconds(report.seconds)},
      {"Machine", report.machine},
      {"Program", build_name()}};
}

}  // namespace

int64_t NeedleReport::num_correct() const {
  return std::count_if(results.begin(), results.end(),
                       [](const NeedleResult& result) { return result.correct; });
}

double NeedleReport::mean_score() const {
  double sum = 0;
  for (const NeedleResult& result : results) sum += result.score;
  return results.empty() ? 0 : sum / static_cast<double>(results.size());
}

std::string full_request(const NeedleCommand& command) {
  return fmt::format("{} on {}: {}", build_name(), machine_name(command.engine),
                     needle_request(command));
}

std::string result_text(const NeedleReport& report) {
  const double percent = 100 * report.mean_score();
  if (report.counts_share) {
    return fmt::format("score {:.1f} %, {} of {} complete", percent, report.num_correct(),
                       report.results.size());
  }
  return fmt::format("{} of {} found ({:.1f} %)", report.num_correct(), report.results.size(),
                     percent);
}

HeatMap make_heat_map(const NeedleReport& report) {
  const NeedleCommand& command = report.command;
  HeatMap map;
  map.title = report.counts_share ? "RULER " + command.kind : "Needle in a haystack";
  map.counts_share = report.counts_share;
  const std::string where_kv_lives =
      report.kv_offload == "off" ? "KV on the device" : report.kv_offload + " KV offload";
  map.subtitle =
      fmt::format("{} · {} · {} attention · {}", result_text(report),
                  model_name(command.engine.model), command.engine.sparse.policy, where_kv_lives);
  map.has_depths = report.has_depths;
  map.notes.push_back(fmt::format("{} fresh {}{} a cell in {} · seed {} · greedy{}",
                                  command.needles, report.counts_share ? "question" : "needle",
                                  command.needles == 1 ? "" : "s", report.haystack_name,
                                  command.engine.seed, report.complete ? "" : " · interrupted"));
  map.notes.push_back(build_name() + " · " + report.machine);
  map.lengths = command.lengths;
  map.depths = command.depths;
  // Cells that an interrupted test has not reached stay at 0 of 0.
  map.cells.assign(map.depths.size(), std::vector<HeatMapCell>(map.lengths.size()));
  for (const NeedleResult& result : report.results) {
    // Every result is of a cell: its length and depth come from the command's lists.
    HeatMapCell& cell = map.cells[index_of(map.depths, result.item.depth_percent)]
                                 [index_of(map.lengths, result.item.length_tokens)];
    ++cell.num_total;
    cell.num_correct += result.correct ? 1 : 0;
    cell.partial_score += result.correct ? 0 : result.score;
  }
  return map;
}

std::string needle_json(const NeedleReport& report) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  for (const auto& [name, value] : settings_of(report)) settings[name] = value;
  const HeatMap map = make_heat_map(report);
  nlohmann::ordered_json cells = nlohmann::ordered_json::array();
  for (size_t row = 0; row < map.depths.size(); ++row) {
    for (size_t column = 0; column < map.lengths.size(); ++column) {
      cells.push_back({{"length", map.lengths[column]},
                       {"depth", map.depths[row]},
                       {"correct", map.cells[row][column].num_correct},
                       {"total", map.cells[row][column].num_total},
                       {"score", map.cells[row][column].share()}});
    }
  }
  nlohmann::ordered_json items = nlohmann::ordered_json::array();
  for (const NeedleResult& result : report.results) items.push_back(item_json(result));
  return json_text({{"format", 1},
                    {"complete", report.complete},
                    {"correct", report.num_correct()},
                    {"total", report.results.size()},
                    {"score", report.mean_score()},
                    {"request", report.request},
                    {"settings", settings},
                    {"cells", cells},
                    {"observations", observations_json(report.observations)},
                    {"items", items}},
                   1);
}

std::string needle_prompts(const NeedleReport& report) {
  std::string lines;
  for (const NeedleResult& result : report.results) {
    const NeedleItem& item = result.item;
    lines += json_text({{"seed", item.seed},
                        {"length", item.length_tokens},
                        {"depth", item.depth_percent},
                        {"key", item.key},
                        {"expected", item.values},
                        {"message", item.user_message},
                        {"prompt_token_ids", item.prompt_ids}});
  }
  return lines;
}

std::string needle_table(const NeedleReport& report, bool colours) {
  const HeatMap map = make_heat_map(report);
  std::vector<std::string> header = {"depth"};
  for (const int64_t length : map.lengths) header.push_back(format_tokens(length));
  Table table(header);
  for (size_t row = 0; row < map.depths.size(); ++row) {
    std::vector<std::string> cells = {map.has_depths ? fmt::format("{:3} %", map.depths[row])
                                                     : "-"};
    for (const HeatMapCell& cell : map.cells[row]) {
      cells.push_back(cell.num_total == 0 ? "-" : fmt::format(" {:3.0f} % ", 100 * cell.share()));
    }
    table.add(cells);
    for (size_t column = 0; column < map.lengths.size(); ++column) {
      const HeatMapCell& cell = map.cells[row][column];
      // A cell without a result keeps the terminal's own colours.
      if (!colours || cell.num_total == 0) continue;
      table.colour(row, column + 1, terminal_colours(cell.share()));
    }
  }
  return table.to_string() + fmt::format("{} in {}{}\n", result_text(report),
                                         format_seconds(report.seconds),
                                         report.complete ? "" : ", interrupted");
}

void prepare_output_dir(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    fail(ErrorCode::kIo, "--out: {} cannot be made: {}; give another directory", dir.string(),
         error.message());
  }
  // Without commit() the file is removed again.
  AtomicFile probe(dir / "needle.json");
  probe.write("{}");
}

// The JSON comes first: it is the result that cannot be drawn again.
std::vector<std::string> write_report(const NeedleReport& report) {
  const std::filesystem::path dir = report.command.out;
  HeatMapPage page{.map = make_heat_map(report), .settings = settings_of(report), .misses = {}};
  for (const NeedleResult& result : report.results) {
    if (result.correct) continue;
    page.misses.push_back({.length_tokens = result.item.length_tokens,
                           .depth_percent = result.item.depth_percent,
                           .expected = result.item.expected,
                           .got = result.got});
  }
  write_file(dir / "needle.json", needle_json(report));
  if (report.command.save_prompts) write_file(dir / "prompts.jsonl", needle_prompts(report));
  write_file(dir / "needle.svg", heat_map_svg(page.map));
  write_file(dir / "needle.html", heat_map_html(page));
  std::vector<std::string> lines = {"heat map: " + (dir / "needle.html").string()};
  lines.push_back("answers:  " + (dir / "needle.json").string());
  if (report.command.save_prompts) {
    lines.push_back("prompts:  " + (dir / "prompts.jsonl").string());
  }
  return lines;
}

std::string write_picture(const NeedleReport& report) {
  const std::filesystem::path dir = report.command.out;
  const std::string why_not = render_png(dir / "needle.svg", dir / "needle.png");
  return why_not.empty() ? "picture:  " + (dir / "needle.png").string() : why_not;
}

}  // namespace sluice::eval
