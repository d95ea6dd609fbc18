// The page of /metrics: its names, its text before a model is loaded, names of models that try to
// break it, and the verdict of Prometheus' own checker where it is installed.
#include "server/metrics/metrics_page.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "server/metrics/request_life.h"
#include "server/metrics_text.h"

namespace sluice::metrics {
namespace {

EngineReading reading() {
  return {.num_running = 3,
          .num_waiting = 2,
          .num_preemptions = 1,
          .num_blocks = 8,
          .num_used_blocks = 6,
          .block_tokens = 16,
          .num_host_blocks = 8,
          .device_kv = KvBytes{.used = 10, .cached = 20, .free = 30},
          .host_kv = KvBytes{.used = 1, .cached = 2, .free = 3},
          .transfers = KvTransfers{.h2d_bytes = 100,
                                   .d2h_bytes = 50,
                                   .num_slot_waits = 7,
                                   .num_hot_page_hits = 9,
                                   .num_hot_page_misses = 3},
          .store = StoreCounts{.read_bytes = 400,
                               .written_bytes = 300,
                               .num_skipped_blocks = 5,
                               .num_bad_files = 6,
                               .num_write_errors = 8},
          .experts = ExpertReads{21, 22, 23, 24},
          .events = KvEventSums{.num_sent = 12, .num_dropped = 13},
          .step_tokens = {.bounds = {1, 8}, .cumulative = {2, 3}, .count = 4, .sum = 30},
          .last_progress_s = 0.25,
          .num_warnings = 2};
}

// All metrics at once.
std::string full_page(std::string_view model_name) {
  HttpMetrics http;
  http.answered("/v1/models/{}", 200);
  http.rejected(Rejection::kWaiting);
  http.aborted(AbortReason::kSlowClient);
  RequestMetrics requests(2'000'000);
  const TimePoint start;
  RequestLife life(requests, {start, start, 10, 16, 1});
  life.started(start + std::chrono::milliseconds(1), {.device = 4});
  life.generated(start + std::chrono::milliseconds(20), 1);
  life.generated(start + std::chrono::milliseconds(33), 1);
  life.ended(start + std::chrono::milliseconds(33), Outcome::kStop);
  const EngineReading engine = reading();
  return render_metrics({.model_name = model_name,
                         .http = http,
                         .process = {.resident_bytes = 4096, .num_lost_log_lines = 11},
                         .requests = &requests,
                         .engine = &engine});
}

TEST(MetricsPage, ShowsHttpBeforeAModelIsLoaded) {
  HttpMetrics http;
  http.answered("/health", 503);
  http.answered("/health", 503);
  http.answered("/v1/completions", 503);
  http.rejected(Rejection::kLoading);
  http.aborted(AbortReason::kDisconnect);
  const std::string common = "model_name=\"m\",engine=\"0\"";
  EXPECT_EQ(
      render_metrics({.model_name = "m", .http = http}),
      "# HELP vllm:admission_rejections_total Valid requests that were not accepted.\n"
      "# TYPE vllm:admission_rejections_total counter\n"
      "vllm:admission_rejections_total{" +
          common +
          ",reason=\"waiting\"} 0\n"
          "vllm:admission_rejections_total{" +
          common +
          ",reason=\"waiting_tokens\"} 0\n"
          "vllm:admission_rejections_total{" +
          common +
          ",reason=\"loading\"} 1\n"
          "vllm:admission_rejections_total{" +
          common +
          ",reason=\"draining\"} 0\n"
          "vllm:admission_rejections_total{" +
          common +
          ",reason=\"dead\"} 0\n"
          "# HELP sluice:requests_aborted_total Accepted requests that the server cancelled.\n"
          "# TYPE sluice:requests_aborted_total counter\n"
          "sluice:requests_aborted_total{" +
          common +
          ",reason=\"disconnect\"} 1\n"
          "sluice:requests_aborted_total{" +
          common +
          ",reason=\"slow_client\"} 0\n"
          "sluice:requests_aborted_total{" +
          common +
          ",reason=\"timeout\"} 0\n"
          "sluice:requests_aborted_total{" +
          common +
          ",reason=\"drain\"} 0\n"
          "# HELP sluice:unknown_request_fields_total Members of bodies that were ignored.\n"
          "# TYPE sluice:unknown_request_fields_total counter\n"
          "sluice:unknown_request_fields_total{" +
          common +
          "} 0\n"
          "# HELP sluice:http_requests_total Answered HTTP requests.\n"
          "# TYPE sluice:http_requests_total counter\n"
          "sluice:http_requests_total{" +
          common +
          ",route=\"/health\",code=\"503\"} 2\n"
          "sluice:http_requests_total{" +
          common +
          ",route=\"/v1/completions\",code=\"503\"} 1\n"
          "# HELP sluice:log_lines_lost_total Lines of the log that could not be written to "
          "standard "
          "error.\n"
          "# TYPE sluice:log_lines_lost_total counter\n"
          "sluice:log_lines_lost_total{" +
          common + "} 0\n");
}

TEST(MetricsPage, HasTheNamesThatDashboardsRead) {
  const std::map<std::string, std::string> expected = {
      {"vllm:num_requests_running", "gauge"},
      {"vllm:num_requests_waiting", "gauge"},
      {"vllm:kv_cache_usage_perc", "gauge"},
      {"vllm:cache_config_info", "gauge"},
      {"vllm:prompt_tokens_total", "counter"},
      {"vllm:generation_tokens_total", "counter"},
      {"vllm:prompt_tokens_cached_total", "counter"},
      {"vllm:prompt_tokens_cached_by_source_total", "counter"},
      {"vllm:prefix_cache_queries_total", "counter"},
      {"vllm:prefix_cache_hits_total", "counter"},
      {"vllm:num_preemptions_total", "counter"},
      {"vllm:request_success_total", "counter"},
      {"vllm:admission_rejections_total", "counter"},
      {"vllm:time_to_first_token_seconds", "histogram"},
      {"vllm:inter_token_latency_seconds", "histogram"},
      {"vllm:request_time_per_output_token_seconds", "histogram"},
      {"vllm:e2e_request_latency_seconds", "histogram"},
      {"vllm:request_queue_time_seconds", "histogram"},
      {"vllm:request_prefill_time_seconds", "histogram"},
      {"vllm:request_decode_time_seconds", "histogram"},
      {"vllm:request_inference_time_seconds", "histogram"},
      {"vllm:request_prompt_tokens", "histogram"},
      {"vllm:request_generation_tokens", "histogram"},
      {"vllm:request_params_n", "histogram"},
      {"vllm:request_params_max_tokens", "histogram"},
      {"vllm:iteration_tokens_total", "histogram"},
      {"sluice:kv_bytes", "gauge"},
      {"sluice:kv_transfer_bytes_total", "counter"},
      {"sluice:slot_waits_total", "counter"},
      {"sluice:hot_page_reads_total", "counter"},
      {"sluice:expert_reads_total", "counter"},
      {"sluice:expert_bytes_total", "counter"},
      {"sluice:prefill_remaining_tokens", "gauge"},
      {"sluice:requests_aborted_total", "counter"},
      {"sluice:engine_last_progress_seconds", "gauge"},
      {"sluice:http_requests_total", "counter"},
      {"sluice:unknown_request_fields_total", "counter"},
      {"sluice:store_read_bytes_total", "counter"},
      {"sluice:store_write_bytes_total", "counter"},
      {"sluice:store_skipped_blocks_total", "counter"},
      {"sluice:store_bad_files_total", "counter"},
      {"sluice:store_write_errors_total", "counter"},
      {"sluice:kv_events_total", "counter"},
      {"sluice:kv_events_dropped_total", "counter"},
      {"sluice:warnings_total", "counter"},
      {"sluice:log_lines_lost_total", "counter"},
      {"process_resident_memory_bytes", "gauge"},
  };
  EXPECT_EQ(testing::MetricsText(full_page("m"), "m").types(), expected);
}

TEST(MetricsPage, ShowsTheEngine) {
  const testing::MetricsText page(full_page("m"), "m");
  EXPECT_EQ(page.at("vllm:num_requests_running"), 3);
  EXPECT_EQ(page.at("vllm:num_requests_waiting"), 2);
  EXPECT_EQ(page.at("vllm:kv_cache_usage_perc"), 0.75);
  EXPECT_EQ(page.at("vllm:cache_config_info{block_size=16,num_gpu_blocks=8,num_cpu_blocks=8}"), 1);
  EXPECT_EQ(page.at("vllm:num_preemptions_total"), 1);
  EXPECT_EQ(page.at("sluice:kv_bytes{place=device,state=used}"), 10);
  EXPECT_EQ(page.at("sluice:kv_bytes{place=device,state=cached}"), 20);
  EXPECT_EQ(page.at("sluice:kv_bytes{place=device,state=free}"), 30);
  EXPECT_EQ(page.at("sluice:kv_bytes{place=host,state=cached}"), 2);
  EXPECT_EQ(page.at("sluice:kv_transfer_bytes_total{direction=h2d}"), 100);
  EXPECT_EQ(page.at("sluice:kv_transfer_bytes_total{direction=d2h}"), 50);
  EXPECT_EQ(page.at("sluice:slot_waits_total"), 7);
  EXPECT_EQ(page.at("sluice:hot_page_reads_total{result=hit}"), 9);
  EXPECT_EQ(page.at("sluice:hot_page_reads_total{result=miss}"), 3);
  EXPECT_EQ(page.at("sluice:expert_reads_total{result=hit}"), 21);
  EXPECT_EQ(page.at("sluice:expert_reads_total{result=miss}"), 22);
  EXPECT_EQ(page.at("sluice:expert_bytes_total{way=fetched}"), 23);
  EXPECT_EQ(page.at("sluice:expert_bytes_total{way=streamed}"), 24);
  EXPECT_EQ(page.at("vllm:iteration_tokens_total_bucket{le=8.0}"), 3);
  EXPECT_EQ(page.at("vllm:iteration_tokens_total_count"), 4);
  EXPECT_EQ(page.at("vllm:iteration_tokens_total_sum"), 30);
  EXPECT_EQ(page.at("sluice:engine_last_progress_seconds"), 0.25);
  EXPECT_EQ(page.at("sluice:http_requests_total{route=/v1/models/{},code=200}"), 1);
  EXPECT_EQ(page.at("sluice:store_bad_files_total"), 6);
  EXPECT_EQ(page.at("sluice:store_write_errors_total"), 8);
  EXPECT_EQ(page.at("sluice:kv_events_total"), 12);
  EXPECT_EQ(page.at("sluice:kv_events_dropped_total"), 13);
  EXPECT_EQ(page.at("sluice:warnings_total"), 2);
  EXPECT_EQ(page.at("sluice:log_lines_lost_total"), 11);
  EXPECT_EQ(page.at("process_resident_memory_bytes"), 4096);
}

// Memory that is touched is counted.
TEST(MetricsPage, ReadsTheMemoryOfTheProcess) {
  constexpr int64_t kMore = 64 << 20;
  const int64_t before = resident_bytes();
  EXPECT_GT(before, 1 << 20);
  const std::vector<char> memory(kMore, 'x');
  EXPECT_GE(resident_bytes(), before + kMore / 2) << memory.size();
}

TEST(MetricsPage, LeavesOutWhatAnEngineDoesNotHave) {
  const EngineReading engine;  // without offload, and without blocks
  const HttpMetrics http;
  const testing::MetricsText page(
      render_metrics({.model_name = "m", .http = http, .engine = &engine}), "m");
  EXPECT_EQ(page.at("vllm:kv_cache_usage_perc"), 0);
  for (const char* name :
       {"sluice:kv_bytes", "sluice:kv_transfer_bytes_total", "sluice:slot_waits_total",
        "sluice:store_write_errors_total", "process_resident_memory_bytes"}) {
    EXPECT_EQ(page.types().count(name), 0U) << name;
  }
}

// A name and what readers of the page must see.
struct Name {
  std::string given;
  std::string shown;
};

std::vector<Name> hostile_names() {
  std::vector<Name> names;
  for (const char* name : {"\"", "\\", "\\\\\"", "\n", "a\nvllm:num_requests_running 9\n",
                           "x\"} 1\nb{c=\"", "\\n", "\r\n", "\t", "模型 🚀", "", "{},=# HELP a"}) {
    names.push_back({name, name});
  }
  names.push_back({std::string("a\0b", 3), std::string("a\0b", 3)});
  names.push_back({"\xff\xfe", "\uFFFD\uFFFD"});
  names.push_back({"cut\xe6\xa8", "cut\uFFFD"});
  names.push_back({std::string(4000, '"'), std::string(4000, '"')});
  return names;
}

// Only the value of one label changes: the same samples, the same values.
TEST(MetricsPage, KeepsItsFormWithAnyModelName) {
  const testing::MetricsText plain(full_page("m"), "m");
  for (const Name& name : hostile_names()) {
    const testing::MetricsText page(full_page(name.given), name.shown);
    EXPECT_EQ(page.samples(), plain.samples()) << name.shown.substr(0, 50);
  }
}

// What promtool says about a page.
std::string verdict_on(const std::string& page) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("sluice_page_" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary) << page;
  const std::string command = "promtool check metrics < '" + path.string() + "' 2>&1";
  std::string verdict;
  FILE* pipe = popen(command.c_str(), "r");
  for (int c = pipe != nullptr ? fgetc(pipe) : EOF; c != EOF; c = fgetc(pipe)) {
    verdict += static_cast<char>(c);
  }
  if (pipe != nullptr) pclose(pipe);
  std::filesystem::remove(path);
  return verdict;
}

// It advises against two things that the names of vLLM have. Everything else is a finding, above
// all that it cannot read the page, of which it would then say no advice.
TEST(MetricsPage, SatisfiesPromtool) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "skipped: no promtool";
  ASSERT_NE(verdict_on("a{b=\"\n\"} 1\n").find("error"), std::string::npos);
  const testing::MetricsText page(full_page("m"), "m");
  const auto num_with_colon = static_cast<size_t>(std::ranges::count_if(
      page.types(), [](const auto& type) { return type.first.find(':') != std::string::npos; }));
  for (const Name& name : hostile_names()) {
    std::set<std::string> advised;
    std::istringstream verdict(verdict_on(full_page(name.given)));
    for (std::string line; std::getline(verdict, line);) {
      const size_t space = line.find(' ');
      const std::string advice = line.substr(std::min(space, line.size()));
      advised.insert(line.substr(0, space));
      const bool is_of_vllm =
          advice == " metric names should not contain ':'" ||
          line ==
              "vllm:iteration_tokens_total non-counter metrics should not have \"_total\" suffix";
      EXPECT_TRUE(is_of_vllm) << line;
    }
    EXPECT_EQ(advised.size(), num_with_colon);
  }
}

}  // namespace
}  // namespace sluice::metrics
