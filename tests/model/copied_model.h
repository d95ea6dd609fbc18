// copy_model: a model of the golden files with another config.json.
//
// Used by tests of tests/engine. Thread rule: any thread.
#pragma once

#include <filesystem>

#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"
#include "sluice/engine_options.h"

namespace sluice::testing {

// Copies the model of `options` to `dir` and takes it from there; `change` gets its config.json.
template <typename Change>
void copy_model(EngineOptions& options, const std::filesystem::path& dir, const Change& change) {
  for (const auto& entry : std::filesystem::directory_iterator(options.model)) {
    std::filesystem::copy(entry.path(), dir, std::filesystem::copy_options::overwrite_existing);
  }
  nlohmann::json config = read_json_file(dir / "config.json");
  change(config);
  write_file(dir / "config.json", config.dump());
  options.model = dir;
}

}  // namespace sluice::testing
