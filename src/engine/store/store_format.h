// make_store_format: the fingerprint and the layout of the KV that an engine computes.
//
// Used by LlmEngine. Thread rule: a pure function, but for files that the options name.
#pragma once

#include "attention/policy_pair.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "model/model_config.h"
#include "model/weights_hasher.h"
#include "sluice/sparse_options.h"
#include "store/block_file.h"

namespace sluice {

struct StoreFormatInputs {
  WeightsHash weights;
  const ModelConfig& config;  // of the whole model
  const KvLayout& layout;     // of a rank
  int32_t num_ranks = 1;
  const PolicyPair& policies;
  const SparseOptions& sparse;  // with the files that were chosen
  const Device& device;
};

// Everything that decides the bits of KV except the tokens. Blocks have the KV heads of all ranks.
// Errors: kModel or kIo for a file of the
// sparse options that cannot be read.
StoreFormat make_store_format(const StoreFormatInputs& inputs);

}  // namespace sluice
