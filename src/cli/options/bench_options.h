// Declares the options of `sluice bench ...`; cli/options/option_checks.h checks them. And what
// other benchmarks declare alike (lab/options.h).
//
// Used by program.cc through subcommand.h. Thread rule: main thread, before other threads start.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/options/option_groups.h"
#include "cli/options/option_set.h"
#include "cli/options/options.h"

namespace sluice::cli {

// Each sets the defaults of `bench`, which outlives the set, and declares its options.
void declare(OptionSet& set, BenchDecodeCommand* bench);
void declare(OptionSet& set, BenchPrefillCommand* bench);
void declare(OptionSet& set, BenchThroughputCommand* bench);
void declare(OptionSet& set, BenchServeCommand* bench);
void declare(OptionSet& set, BenchOffloadCommand* bench);

// The default mode of benchmarks. `auto` would let the memory of the machine decide where KV lives,
// and results of two machines could not be compared.
inline constexpr KvOffload kMeasured = KvOffload::kOff;

// Options of benchmarks that compare ways to keep KV; their own configurations follow.
void declare_kv_work(OptionSet& set, BenchKvCommand* bench);
// Declared last, so that --help shows it after the configurations.
void declare_kv_output(OptionSet& set, BenchKvCommand* bench);

// A comma-separated list of token counts, each from `min` on; replaces the default.
template <typename T>
void token_list(OptionSet& set, std::string_view name, std::string help, std::vector<T>* list,
                int64_t min) {
  set.value(name, "LIST", std::move(help), [=](std::string_view source, std::string_view value) {
    list->clear();
    for (const std::string& item : split_list(source, value)) {
      list->push_back(static_cast<T>(parse_token_count(source, item, min, kMaxTokens)));
    }
  });
}

// A comma-separated list of whole numbers in [min, max]; replaces the default.
void integer_list(OptionSet& set, std::string_view name, std::string help,
                  std::vector<int32_t>* list, int64_t min, int64_t max);

}  // namespace sluice::cli
