// Which models a device has kernels for. Used by the engine's plan, before anything is loaded.
// Thread rule: a free function without state.
#pragma once

#include "device/device.h"
#include "model/model_config.h"

namespace sluice {

// Leaves out what the device has no kernels for and other engines leave out, too, with a warning:
// dual chunk attention on a GPU, where distances past its length are then those of plain rope. A
// GPU takes more rows of a mixture at once.
void adapt_to_device(ModelConfig& config, const Device& device);

// Errors: kUnsupported for a model of weights or layers that only the CPU runs, with a remedy.
void require_kernels(const ModelConfig& config, const Device& device);

}  // namespace sluice
