// bf16 for lanes: what kernels use of CUDA's header of that name.
//
// Thread rule: pure functions.
#pragma once

#include "core/dtype.h"
#include "ops/lanes/lanes.h"

struct __nv_bfloat16 {
  sluice::BFloat16 value;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat16 __float2bfloat16_rn(float value) { return {sluice::BFloat16(value)}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.value.bits; }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
// Rounds once.
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  const auto sum = [](const __nv_bfloat16& p, const __nv_bfloat16& q, const __nv_bfloat16& r) {
    return std::fma(static_cast<float>(p.value), static_cast<float>(q.value),
                    static_cast<float>(r.value));
  };
  return __floats2bfloat162_rn(sum(a.x, b.x, c.x), sum(a.y, b.y, c.y));
}
inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
  const auto product = [](const __nv_bfloat16& p, const __nv_bfloat16& q) {
    return static_cast<float>(p.value) * static_cast<float>(q.value);
  };
  return __floats2bfloat162_rn(product(a.x, b.x), product(a.y, b.y));
}
