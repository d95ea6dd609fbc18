// The copy of rows by index that embedding and gather_rows share.
//
// Used by embedding.cu and activation.cu. Thread rule: enqueue only.
#pragma once

#include <cstdint>

#include "device/cuda/cuda_report.h"

namespace sluice {

class CudaStream;

namespace cuda {

// out[i] = table[indices[i]]: rows of `width` bf16. An index outside the table is reported with its
// place i, and row i of `out` becomes zero. Called inside CudaStream::submit.
struct CopyRowsCall {
  const uint16_t* table;   // [table_rows][width]
  const int32_t* indices;  // [num_indices]
  uint16_t* out;           // [num_indices][width]
  int64_t table_rows;
  int64_t num_indices;
  int64_t width;
  CudaReport report;
};

// Launches the copy; any width and alignment, fastest for multiples of 8 at 16 bytes.
void copy_rows(CudaStream& stream, const CopyRowsCall& call);

}  // namespace cuda
}  // namespace sluice
