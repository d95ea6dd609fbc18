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
  const ModelConfig& config;
  const KvLayout& layout;
  const PolicyPair& policies;
  const SparseOptions& sparse;  // with the files that were chosen
  const Device& device;
};

// Everything that decides the bits of KV except the tokens. Errors: kModel or kIo for a file of the
// sparse options that cannot be read.
StoreFormat make_store_format(const StoreFormatInputs& inputs);

}  // namespace sluice
