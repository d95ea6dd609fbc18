// CudaReport: how a kernel tells the host that its input was bad.
//
// A kernel cannot throw. It gets a CudaReport by value (CudaStream::report), calls `fail_row` of
// cuda_report.cuh, and the next host wait that depends on the kernel throws the text that the op
// named, with the row. Thread rule: plain data.
#pragma once

#include <cstdint>

namespace sluice {

// One 64-bit word per stream in pinned memory; 0 means that all is well. Packed, so that one store
// publishes all of it: bits 56..63 message (1 to 255), 32..55 row, 0..31 serial of the op.
struct CudaReport {
  uint64_t* word = nullptr;
  uint32_t message = 0;
  uint32_t serial = 0;  // 0: recorded in a graph, whose ops run at any time
};

inline constexpr uint64_t kMaxReportedRow = (uint64_t{1} << 24) - 1;  // larger rows say this one

}  // namespace sluice
