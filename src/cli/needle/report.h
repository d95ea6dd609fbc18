// The results of a needle test: table, JSON, heat map; also of one that was interrupted.
//
// Used by needle.cc. Thread rule: values and free functions.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/needle/heat_map.h"
#include "cli/needle/recipe.h"
#include "cli/options.h"
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
// Depths down, lengths across, share found in each cell.
std::string needle_table(const NeedleReport& report, bool colours);

// Makes the directory and proves that it can be written, before hours of work depend on it.
// Errors: kIo naming the path and the reason.
void prepare_output_dir(const std::filesystem::path& dir);

// Writes needle.json, needle.svg, needle.html and, where rsvg-convert is installed, needle.png.
// Returns the lines to print: the files, and how to get a PNG if there is none.
// Errors: kIo; files written before stay whole.
std::vector<std::string> write_report(const NeedleReport& report);

}  // namespace sluice::cli
