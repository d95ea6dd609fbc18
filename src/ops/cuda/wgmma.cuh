// Hopper's warpgroup matrix product (wgmma), as thin functions: one instruction each. The operand
// list of an asm statement cannot depend on a template parameter, hence one overload per width.
//
// Used by kernels compiled for sm_90a only. A warpgroup is 4 consecutive warps; all of its threads
// call these together. Products are asynchronous: the registers of `d` and `a` and the shared
// memory behind descriptors belong to the tensor cores from wgmma_fence to the wgmma_wait that
// covers the product.
// Thread rule: device code.
#pragma once

#include <cstdint>

#include "ops/cuda/shared_copy.cuh"

namespace sluice::cuda {

// Rows of a shared-memory tile are 128 bytes (64 channels), and 8 of them make the unit in which
// 16-byte chunks are swizzled: chunk c of row r lies at chunk c ^ (r % 8).
inline constexpr int kSwizzleRowBytes = 128;
inline constexpr int kSwizzleUnitBytes = 8 * kSwizzleRowBytes;

// The first unit in dynamic shared memory, which may begin anywhere in one: a kernel asks for
// kSwizzleUnitBytes more than it needs.
template <typename Byte>
__device__ __forceinline__ Byte* first_unit(Byte* bytes) {
  const uint32_t beyond = shared_address(bytes) % kSwizzleUnitBytes;
  return bytes + (kSwizzleUnitBytes - beyond) % kSwizzleUnitBytes;
}

// Describes an operand in shared memory with the 128-byte swizzle. Its base is 1024-byte aligned;
// an address inside a unit may be advanced along the row by 32 bytes, 16 channels.
//   unit_stride_bytes: from 8 rows to the next 8
//   block_stride_bytes: from 64 channels to the next 64; read for transposed operands only
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t shared_address,
                                                      uint32_t block_stride_bytes,
                                                      uint32_t unit_stride_bytes) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  return kSwizzle128 | static_cast<uint64_t>(unit_stride_bytes >> 4) << 32 |
         static_cast<uint64_t>(block_stride_bytes >> 4) << 16 | (shared_address & 0x3ffffu) >> 4;
}

// The same operand further on in memory.
__device__ __forceinline__ uint64_t advanced(uint64_t descriptor, uint32_t num_bytes) {
  return descriptor + (num_bytes >> 4);
}

// Orders earlier accesses of registers before the products that follow.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes a group of products.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kPending` of the newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of registers across a fence or wait; no instruction.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin_registers(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Operands of inline PTX: the names of 16, 32, 64 or 128 registers, and the floats from d[i] on.
#define SLUICE_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SLUICE_NAMES_32 \
  SLUICE_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_NAMES_64                                                                     \
  SLUICE_NAMES_32                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SLUICE_NAMES_128                                                           \
  SLUICE_NAMES_64                                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "            \
  "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "              \
  "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "           \
  "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, " \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SLUICE_FLOATS_4(d, i) \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define SLUICE_FLOATS_16(d, i)                                                     \
  SLUICE_FLOATS_4(d, i), SLUICE_FLOATS_4(d, (i) + 4), SLUICE_FLOATS_4(d, (i) + 8), \
      SLUICE_FLOATS_4(d, (i) + 12)
#define SLUICE_FLOATS_32(d, i) SLUICE_FLOATS_16(d, i), SLUICE_FLOATS_16(d, (i) + 16)

// d = a * b^T over 16 channels (d += with `accumulate`): 64 rows by 32 tokens.
__device__ __forceinline__ void wgmma_scores(float (&d)[16], uint64_t a, uint64_t b,
                                             bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" SLUICE_NAMES_16
      "}, "
      "%16, %17, accumulate, 1, 1, 0, 0;\n}\n"
      : SLUICE_FLOATS_16(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// d = a * b^T over 16 channels (d += with `accumulate`): 64 rows by 64 tokens.
__device__ __forceinline__ void wgmma_scores(float (&d)[32], uint64_t a, uint64_t b,
                                             bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SLUICE_NAMES_32
      "}, "
      "%32, %33, accumulate, 1, 1, 0, 0;\n}\n"
      : SLUICE_FLOATS_32(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// d = a * b^T over 16 channels (d += with `accumulate`): 64 rows by 128 tokens.
__device__ __forceinline__ void wgmma_scores(float (&d)[64], uint64_t a, uint64_t b,
                                             bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SLUICE_NAMES_64
      "}, "
      "%64, %65, accumulate, 1, 1, 0, 0;\n}\n"
      : SLUICE_FLOATS_32(d, 0), SLUICE_FLOATS_32(d, 32)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// d = a * b^T over 32 columns in e4m3 (d += with `accumulate`): 64 rows by 32 rows. Sums inside an
// instruction have fewer bits than f32; add up few of them.
__device__ __forceinline__ void wgmma_codes(float (&d)[16], uint64_t a, uint64_t b,
                                            bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" SLUICE_NAMES_16
      "}, "
      "%16, %17, accumulate, 1, 1;\n}\n"
      : SLUICE_FLOATS_16(d, 0)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// The same by 128 rows.
__device__ __forceinline__ void wgmma_codes(float (&d)[64], uint64_t a, uint64_t b,
                                            bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" SLUICE_NAMES_64
      "}, "
      "%64, %65, accumulate, 1, 1;\n}\n"
      : SLUICE_FLOATS_32(d, 0), SLUICE_FLOATS_32(d, 32)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

// d = a * b^T over 16 channels (d += with `accumulate`) with a in registers: 64 rows by 64 tokens.
__device__ __forceinline__ void wgmma_scores(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                             bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SLUICE_NAMES_32
      "}, "
      "{%32, %33, %34, %35}, %36, accumulate, 1, 1, 0;\n}\n"
      : SLUICE_FLOATS_32(d, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

// The same with 128 tokens.
__device__ __forceinline__ void wgmma_scores(float (&d)[64], const uint32_t (&a)[4], uint64_t b,
                                             bool accumulate) {
  asm volatile(
      "{\n.reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SLUICE_NAMES_64
      "}, "
      "{%64, %65, %66, %67}, %68, accumulate, 1, 1, 0;\n}\n"
      : SLUICE_FLOATS_32(d, 0), SLUICE_FLOATS_32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}

// d += a * b over 16 tokens: 64 rows by 64 channels.
__device__ __forceinline__ void wgmma_values(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SLUICE_NAMES_32
               "}, "
               "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;\n"
               : SLUICE_FLOATS_32(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d += a * b over 16 tokens: 64 rows by 128 channels.
__device__ __forceinline__ void wgmma_values(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SLUICE_NAMES_64
               "}, "
               "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;\n"
               : SLUICE_FLOATS_32(d, 0), SLUICE_FLOATS_32(d, 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d += a * b over 16 tokens: 64 rows by 256 channels.
__device__ __forceinline__ void wgmma_values(float (&d)[128], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SLUICE_NAMES_128
               "}, "
               "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;\n"
               : SLUICE_FLOATS_32(d, 0), SLUICE_FLOATS_32(d, 32), SLUICE_FLOATS_32(d, 64),
                 SLUICE_FLOATS_32(d, 96)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef SLUICE_NAMES_16
#undef SLUICE_NAMES_32
#undef SLUICE_NAMES_64
#undef SLUICE_NAMES_128
#undef SLUICE_FLOATS_4
#undef SLUICE_FLOATS_16
#undef SLUICE_FLOATS_32

}  // namespace sluice::cuda
