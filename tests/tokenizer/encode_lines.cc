// encode_lines: the tokenizer as a filter, to compare it with the reference and to measure its
// speed.
//
// Used by tools/golden/check_tokenizer_live.py and by hand. Thread rule: one thread.
//   encode_lines DIR [--special]   each line of stdin is a JSON string; prints its ids, then a tab
//                                  and the JSON string that they decode to
//   encode_lines DIR --speed FILE  loads once, encodes FILE five times, prints MB/s
#include <algorithm>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "io/file.h"
#include "io/json_type.h"
#include "tokenizer/tokenizer.h"

namespace sluice {
namespace {

// Processor time, so that a busy machine does not count as a slow tokenizer.
double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void encode_lines(const std::string& dir, bool parse_special) {
  const Tokenizer tokenizer = Tokenizer::load(dir);
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = nlohmann::json::parse(line).get<std::string>();
    const std::vector<int32_t> ids = tokenizer.encode(text, {.parse_special = parse_special});
    const nlohmann::json decoded = tokenizer.decode(ids, false);
    fmt::print("{}\t{}\n", fmt::join(ids, " "), decoded.dump());
  }
}

void measure(const std::string& dir, const std::string& file) {
  const double load_start = processor_seconds();
  const Tokenizer tokenizer = Tokenizer::load(dir);
  fmt::print("load {:.3f} s\n", processor_seconds() - load_start);
  const std::string text = read_file(file);
  std::vector<double> rates;
  size_t num_ids = 0;
  for (int i = 0; i < 5; ++i) {
    const double start = processor_seconds();
    num_ids = tokenizer.encode(text).size();
    rates.push_back(static_cast<double>(text.size()) / 1e6 / (processor_seconds() - start));
  }
  std::sort(rates.begin(), rates.end());
  fmt::print("encode {} bytes, {} ids: median {:.1f} MB/s, {:.1f} to {:.1f}\n", text.size(),
             num_ids, rates[2], rates.front(), rates.back());
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  try {
    if (arguments.size() == 3 && arguments[1] == "--speed") {
      sluice::measure(arguments[0], arguments[2]);
    } else if (arguments.size() == 1 || (arguments.size() == 2 && arguments[1] == "--special")) {
      sluice::encode_lines(arguments[0], arguments.size() == 2);
    } else {
      fmt::print(stderr, "usage: encode_lines DIR [--special | --speed FILE]\n");
      return 2;
    }
  } catch (const sluice::Error& error) {
    fmt::print(stderr, "encode_lines: {}\n", error.what());
    return 1;
  }
  return 0;
}
