// The results of a needle test: table, JSON, heat map; also of one that was interrupted.
//
// Used by needle.cc. Thread rule: values and free functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/needle/heat_map.h"
#include "cli/needle/recipe.h"
#include "cli/options/options.h"
#include "sluice/observations.h"

namespace sluice::cli {

struct NeedleResult {
  NeedleItem item;
  std::string got;
  bool correct = false;
  std::string finish_reason;
  double first_token_seconds = 0;  // from the request to the first token
  double total_seconds = 0;
};

struct NeedleReport {
  NeedleCommand command;
  std::string haystack_name;
  std::string machine;
  std::string kv_offload;  // what the engine uses: "off", "chunked" or "layerwise"
  Observations observations;
  std::vector<NeedleResult> results;
  double seconds = 0;
  bool complete = true;  // false after Ctrl-C

  int64_t num_correct() const;
};

HeatMap make_heat_map(const NeedleReport& report);
std::string needle_json(const NeedleReport& report);
// A line of JSON for each result: what the user says and the ids of the whole prompt, so that
// another engine can be asked the same. Not in needle_json: a prompt of a million tokens takes some
// 12 MB, and seed, length, depth, kind and haystack make it again.
std::string needle_prompts(const NeedleReport& report);
// Depths down, lengths across, share found in each cell.
std::string needle_table(const NeedleReport& report, bool colours);

// Makes the directory and proves that it can be written, before hours of work depend on it.
// Errors: kIo naming the path and the reason.
void prepare_output_dir(const std::filesystem::path& dir);

// Writes needle.json, needle.svg, needle.html and, with --save-prompts, prompts.jsonl. Returns the
// lines to print: the files.
// Errors: kIo; files written before stay whole.
std::vector<std::string> write_report(const NeedleReport& report);

// Makes needle.png from needle.svg where rsvg-convert is installed. Returns the line to print: the
// file, or how to get it. Errors: kIo when it cannot be written; nothing of it stays then.
std::string write_picture(const NeedleReport& report);

}  // namespace sluice::cli
