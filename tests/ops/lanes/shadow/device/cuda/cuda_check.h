// Checks of the runtime's results on lanes are in cuda_stream.h.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_stream.h"
