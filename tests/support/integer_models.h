// Copies of the tiny models with weights in integers of 4 and 8 bits, in the four forms of files.
//
// Used by tests of loading and of the engine. Words are packed from the formulas of the exporters,
// number by number, so that they share nothing with the code under test. Thread rule: host thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "io/json_type.h"
#include "model/quantization.h"
#include "support/weight_copies.h"

namespace sluice::testing {

struct IntegerKind {
  IntegerForm form = IntegerForm::kPackQuantized;
  int bits = 4;
  int64_t group = 32;      // columns; -1: all of a row
  bool symmetric = false;  // without zero points, of kPackQuantized; else zero points in the middle
  bool ordered = false;    // groups of scattered columns
};

// "gptq, 4 bits, groups of 32, ordered", for failures.
std::string kind_name(const IntegerKind& kind);

// quantization_config as the exporter of the form writes it.
nlohmann::json integer_config(const IntegerKind& kind);

// Writes the tiny model into `directory`: the weights of its layers in integers, all else as it
// was. `config` goes over its config.json, beside integer_config.
QuantizedModel write_integer_model(const std::string& tiny_model, const IntegerKind& kind,
                                   const std::filesystem::path& directory,
                                   const nlohmann::json& config = nlohmann::json::object());

}  // namespace sluice::testing
