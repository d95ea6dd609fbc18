// The results of a needle test, complete or interrupted, as table, JSON and heat map.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "eval/heat_map.h"
#include "eval/needle_options.h"
#include "eval/recipe.h"
#include "sluice/observations.h"

namespace sluice::eval {

// One answer.
struct NeedleResult {
  NeedleItem item;
  std::string got;       // the model's answer
  bool correct = false;  // is_correct (recipe.h)
  double score = 0;      // score (recipe.h)
  std::string finish_reason;
  double first_token_seconds = 0;  // from the request to the first token
  double total_seconds = 0;        // from the request to the last
};

// A whole test.
struct NeedleReport {
  NeedleCommand command;  // with the lengths that were used
  std::string request;    // full_request of the command as it was given
  std::string haystack_name;
  bool counts_share = false;  // of the task
  bool has_depths = true;     // false for a task with a text of its own
  std::string machine;
  std::string kv_offload;  // the mode in use: "off", "chunked" or "layerwise"
  Observations observations;
  std::vector<NeedleResult> results;  // in the order asked
  double seconds = 0;                 // of all questions, without loading
  bool complete = true;               // false after Ctrl-C

  // Of `results`; unanswered items do not count.
  int64_t num_correct() const;
  double mean_score() const;  // 0 without results
};

// needle_request, with the program and the machine: tests with equal ones can stand in one table.
std::string full_request(const NeedleCommand& command);

// "29 of 30 found (96.7 %)", or "score 81.3 %, 12 of 30 complete" if parts of an answer count.
std::string result_text(const NeedleReport& report);

// Found needles and scores per cell, with titles from the settings.
HeatMap make_heat_map(const NeedleReport& report);
// Settings, cells, observations and every answer.
std::string needle_json(const NeedleReport& report);
// One line of JSON per result with the user message and the ids of the whole prompt, for other
// engines. Not part of needle_json, since a prompt of a million tokens takes some 12 MB and can be
// made again from seed, length, depth, kind and haystack.
std::string needle_prompts(const NeedleReport& report);
// A row per depth, a column per length, and the mean score in each cell.
std::string needle_table(const NeedleReport& report, bool colours);

// Makes the directory and checks that files can be written there, before the test, which may take
// hours.
// Errors: kIo naming the path and the reason.
void prepare_output_dir(const std::filesystem::path& dir);

// Writes needle.json, needle.svg, needle.html and, with --save-prompts, prompts.jsonl. Returns
// lines that name the files.
// Errors: kIo; files that are complete stay.
std::vector<std::string> write_report(const NeedleReport& report);

// Makes needle.png from needle.svg if rsvg-convert is installed. Returns a line that names the file
// or says how to get the program. Errors: kIo if the file cannot be written; no part of it stays.
std::string write_picture(const NeedleReport& report);

}  // namespace sluice::eval
