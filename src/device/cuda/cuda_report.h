// CudaReport: how a kernel reports bad input to the host.
//
// A kernel cannot throw. It receives a CudaReport by value (CudaStream::report) and calls
// `fail_row` of cuda_report.cuh; the next host wait that depends on the kernel throws the op's text
// with the row. Thread rule: plain data.
#pragma once

#include <cstdint>

namespace sluice {

// One 64-bit word per stream in pinned memory; 0 means no report. Packed, so that one store
// publishes it: bits 56..63 message (1 to 255), 32..55 row, 0..31 serial of the op.
struct CudaReport {
  uint64_t* word = nullptr;
  uint32_t message = 0;
  uint32_t serial = 0;  // 0: recorded in a graph, whose ops have no serial
};

inline constexpr uint64_t kMaxReportedRow = (uint64_t{1} << 24) - 1;  // larger rows become this

}  // namespace sluice
