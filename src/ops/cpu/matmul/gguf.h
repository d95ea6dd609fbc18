// Weights in GGUF's blocks: where a group's values and codes lie.
//
// Included by the matmul/<isa>.cc files only, so that each ISA has vectors of its own (hence the
// unnamed namespace; see matmul/kernel.h). Thread rule: pure functions.
#pragma once

#include "ops/cpu/matmul/block.h"

namespace sluice {
namespace {

// The values of a group of columns, for the 16 rows of a panel; scales are the bits of f16.
struct GgufGroup {
  const int8_t* factors = nullptr;
  const uint8_t* minima = nullptr;  // null, and min_scales, of a format without
  const uint16_t* scales = nullptr;
  const uint16_t* min_scales = nullptr;
};

// Where the values and codes of a group lie, in bytes from the beginning of its panel. The same for
// all panels: its divisions take as long as a group of one.
struct GroupPlace {
  int64_t scales = 0;
  int64_t min_scales = -1;  // of a format without minima, and `minima`
  int64_t factors = 0;
  int64_t minima = -1;
  int64_t codes = 0;

  GroupPlace() = default;
  GroupPlace(const GgufPanels& panels, int64_t column) {
    const int64_t in_block = column % panels.block_cols;
    const int64_t of_group = in_block / panels.group_cols * kPanelRows;
    scales = column / panels.block_cols * panels.block_bytes;
    codes = scales + panels.value_bytes + in_block * kPanelRows / (panels.is_4 ? 2 : 1);
    factors = scales + (panels.has_minima ? 4 : 2) * kPanelRows + of_group;
    if (!panels.has_minima) return;
    min_scales = scales + 2 * kPanelRows;
    minima = factors + panels.block_cols / panels.group_cols * kPanelRows;
  }

  GgufGroup of(const uint8_t* panel) const {
    GgufGroup group;
    group.scales = reinterpret_cast<const uint16_t*>(panel + scales);
    group.factors = reinterpret_cast<const int8_t*>(panel + factors);
    if (minima < 0) return group;
    group.min_scales = reinterpret_cast<const uint16_t*>(panel + min_scales);
    group.minima = panel + minima;
    return group;
  }
};

// What a code is multiplied by, and what is subtracted then, of the 16 rows: exact.
struct alignas(64) GgufSteps {
  float steps[kPanelRows];
  float offsets[kPanelRows];
};

}  // namespace
}  // namespace sluice
