// Reading weights in e4m3 number by number; their scales are f32, which the caller multiplies by.
//
// Thread rule: device code, pure functions of registers.
#pragma once

#include <cstdint>

#include "ops/cuda/kv_codec.cuh"

namespace sluice::cuda {

inline constexpr uint32_t kExponentOfOne = 127;  // the scale of KV that changes nothing
inline constexpr KvCodec kE4m3Codec = kv_codec(KvElement::kE4m3);

// The bf16 of eight neighbouring numbers.
__device__ __forceinline__ Bf16x8 read_e4m3(uint2 numbers) {
  constexpr KvCodec codec = kE4m3Codec;  // a constant of the device's code
  return turn_codes(codec, numbers, row_factors(codec, kExponentOfOne));
}

// One number, as f32.
__device__ __forceinline__ float read_e4m3(uint8_t number) {
  constexpr KvCodec codec = kE4m3Codec;  // a constant of the device's code
  return turn_code(codec, number, row_factors(codec, kExponentOfOne));
}

}  // namespace sluice::cuda
