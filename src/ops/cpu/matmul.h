// Matrix products, weight packing and embedding on the CPU.
//
// Called by cpu/cpu_ops; tests and benches call `matmul` with an ISA of their choice. The contract
// is ops/matmul.h. Shapes were checked before this point. Thread rule: enqueue only.
#pragma once

#include "device/cpu/cpu_features.h"
#include "ops/matmul.h"

namespace sluice {

class CpuStream;

namespace cpu {

size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols);
void pack_weight(CpuStream& stream, const PackWeightArgs& args);
void embedding(CpuStream& stream, const EmbeddingArgs& args);

// REQUIRES: the machine has `isa`.
void matmul(CpuStream& stream, const MatmulArgs& args, CpuIsa isa);

}  // namespace cpu
}  // namespace sluice
