// Working memory of the calling thread, shared by all ops that the thread runs one after another.
//
// Used by ops/cpu inside a job. Its contents do not survive the job.
// Thread rule: every thread has its own.
#pragma once

#include <cstddef>

namespace sluice::cpu {

// At least `size_bytes`, 64-byte aligned. Grows when an op needs more than any before it on this
// thread; an op whose need does not depend on the batch therefore allocates once.
std::byte* thread_scratch(size_t size_bytes);

}  // namespace sluice::cpu
