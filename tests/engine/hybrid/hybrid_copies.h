// Hybrids of random weights and their copies in fewer bits, for tests of what is loaded and of what
// such models answer.
#pragma once

#include <memory>
#include <string>

#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/fp8_models.h"
#include "support/hybrid_models.h"
#include "support/integer_models.h"

namespace sluice::testing {

// Heads of published sizes, which have whole blocks of scales; columns have a part of one.
inline HybridSizes wide(HybridSizes sizes) {
  sizes.hidden = 160;
  sizes.head_dim = 256;
  sizes.rotary_dim = 64;
  sizes.k_dim = sizes.v_dim = 128;
  return sizes;
}

// Heads that begin within blocks, and within words of eight rows.
inline HybridSizes odd(HybridSizes sizes) {
  sizes.k_dim = 12;
  sizes.v_dim = 28;
  return sizes;
}

// A hybrid of random weights in bf16, and a quantized copy.
struct Copies {
  TempDir plain;
  TempDir quantized;
  QuantizedModel model;
};

inline std::unique_ptr<Copies> write_fp8(const HybridSizes& sizes, WeightScales scales) {
  auto copies = std::make_unique<Copies>();
  write_hybrid(sizes, copies->plain.path());
  const nlohmann::json method = with_left_out(fp8_config(scales), sizes);
  copies->model = write_fp8_model(copies->plain.path().string(), scales, copies->quantized.path(),
                                  {{"quantization_config", method}});
  return copies;
}

inline std::unique_ptr<Copies> write_integers(const HybridSizes& sizes, const IntegerKind& kind) {
  auto copies = std::make_unique<Copies>();
  write_hybrid(sizes, copies->plain.path());
  const nlohmann::json method = with_left_out(integer_config(kind), sizes);
  copies->model = write_integer_model(copies->plain.path().string(), kind, copies->quantized.path(),
                                      {{"quantization_config", method}});
  return copies;
}

}  // namespace sluice::testing
