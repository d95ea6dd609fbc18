// TapTensor: a tensor that was captured inside the model.
//
// From LLM::trace. Thread rule: values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

// Captured tensors, for alignment with a reference implementation. `data` is f32, row-major.
struct TapTensor {
  std::string name;  // "layer.3.attn_out", see docs/architecture.md for all names
  std::vector<int64_t> shape;
  std::vector<float> data;
};

}  // namespace sluice
