// A checkpoint with a NaN, whose first token ends the engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "io/safetensors.h"

namespace sluice::cli {

// The bytes of model.safetensors with a NaN in the last norm.
inline std::string with_nan(std::string bytes) {
  uint64_t begin = 0;
  for (const SafetensorsEntry& entry :
       parse_safetensors_header(std::as_bytes(std::span(bytes)), "model.safetensors").tensors) {
    if (entry.name == "model.norm.weight") begin = entry.begin;
  }
  EXPECT_GT(begin, 0U);
  bytes[begin] = static_cast<char>(0xc0);  // a quiet NaN in bf16: 0x7fc0
  bytes[begin + 1] = 0x7f;
  return bytes;
}

}  // namespace sluice::cli
