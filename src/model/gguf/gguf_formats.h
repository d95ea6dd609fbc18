// Which weights of a GGUF file stay in its blocks in memory, and in what format.
//
// Used by read_gguf_config, WeightLayout and tests. Thread rule: pure functions.
#pragma once

#include "io/gguf/gguf_blocks.h"
#include "model/gguf/gguf_metadata.h"
#include "model/model_config.h"
#include "ops/matmul/packed_weight.h"

namespace sluice {

// The format that holds codes and values of a type as they are; bf16 for a type without codes.
WeightFormat gguf_format(const GgufType& type);

// The narrowest format that holds those of both, for matrices that are multiplied as one; bf16 if
// one of them is.
WeightFormat join_gguf(WeightFormat a, WeightFormat b);

// Sets the formats of all modules of the file, but for matrices whose columns memory has in another
// order or with padding.
void set_gguf_formats(const GgufMetadata& metadata, ModelConfig& model);

}  // namespace sluice
