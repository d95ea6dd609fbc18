// The device of a stream of lanes.
//
// Thread rule: a value.
#pragma once

#include "device/cuda/cuda_stream.h"
