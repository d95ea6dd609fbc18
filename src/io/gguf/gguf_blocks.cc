// Scalar decoders. Layouts: ggml's block_q4_0 to block_q6_K (ggml-common.h). All numbers of a block
// are little-endian, as are all machines that Sluice runs on.
#include "io/gguf/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/dtype.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kSmallBlock = 32;
constexpr int64_t kSuperBlock = 256;

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float half(const std::byte* at) { return static_cast<float>(Float16{load<uint16_t>(at)}); }
int unsigned_at(const std::byte* at, int64_t index) { return std::to_integer<int>(at[index]); }
int signed_at(const std::byte* at, int64_t index) { return static_cast<int8_t>(at[index]); }

// Calls decode_one(block, elements) for each block. The sizes are constants, so that compilers
// unroll and vectorize: 0.3 (Q6_K) to 1.7 (Q8_0) billion elements a second on one core.
template <int64_t kElements, size_t kBytes, void (*decode_one)(const std::byte*, float*)>
void decode_all(const std::byte* blocks, int64_t num_blocks, float* elements) {
  for (int64_t i = 0; i < num_blocks; ++i) {
    decode_one(blocks + static_cast<size_t>(i) * kBytes, elements + i * kElements);
  }
}

void decode_f32(const std::byte* block, float* x) { *x = load<float>(block); }
void decode_f16(const std::byte* block, float* x) { *x = half(block); }
void decode_bf16(const std::byte* block, float* x) {
  *x = static_cast<float>(BFloat16::from_bits(load<uint16_t>(block)));
}

// f16 d, 32 i8. The product has the order of the reference, though it commutes.
void decode_q8_0(const std::byte* block, float* x) {
  const float d = half(block);
  for (int64_t i = 0; i < kSmallBlock; ++i) {
    x[i] = static_cast<float>(signed_at(block + 2, i)) * d;
  }
}

// Element i of 32 nibbles: the low halves of 16 bytes, then the high ones.
int nibble(const std::byte* bytes, int64_t i) {
  return i < 16 ? unsigned_at(bytes, i) & 15 : unsigned_at(bytes, i - 16) >> 4;
}

// f16 d, 32 nibbles around 8.
void decode_q4_0(const std::byte* block, float* x) {
  const float d = half(block);
  for (int64_t i = 0; i < kSmallBlock; ++i) x[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}

// f16 d, f16 m, 32 nibbles.
void decode_q4_1(const std::byte* block, float* x) {
  const float d = half(block), m = half(block + 2);
  for (int64_t i = 0; i < kSmallBlock; ++i) x[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}

// Element i of 32 nibbles with a fifth bit each, from the 32 bits before them.
int five_bits(const std::byte* bits, int64_t i) {
  const int high = static_cast<int>(load<uint32_t>(bits) >> i & 1);
  return nibble(bits + 4, i) | high << 4;
}

// f16 d, 32 fifth bits, 32 nibbles, around 16.
void decode_q5_0(const std::byte* block, float* x) {
  const float d = half(block);
  for (int64_t i = 0; i < kSmallBlock; ++i) {
    x[i] = d * static_cast<float>(five_bits(block + 2, i) - 16);
  }
}

// f16 d, f16 m, 32 fifth bits, 32 nibbles.
void decode_q5_1(const std::byte* block, float* x) {
  const float d = half(block), m = half(block + 2);
  for (int64_t i = 0; i < kSmallBlock; ++i) {
    x[i] = d * static_cast<float>(five_bits(block + 4, i)) + m;
  }
}

// Scale and minimum of sub-block j of a Q4_K or Q5_K block: 6 bits each, packed in 12 bytes.
std::pair<int, int> scale_and_min(const std::byte* s, int j) {
  if (j < 4) return {unsigned_at(s, j) & 63, unsigned_at(s, j + 4) & 63};
  return {(unsigned_at(s, j + 4) & 15) | (unsigned_at(s, j - 4) >> 6) << 4,
          (unsigned_at(s, j + 4) >> 4) | (unsigned_at(s, j) >> 6) << 4};
}

// Element i of the nibbles of a K block: 32 low halves, then the high ones of the same 32 bytes.
int k_nibble(const std::byte* bytes, int64_t i) {
  const int byte = unsigned_at(bytes, i / 64 * 32 + i % 32);
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

// w = d * scale * q - dmin * minimum, with a scale and a minimum for each 32 elements. Both
// products of the factors are rounded before they meet q, as in the reference. f16 d, f16 dmin, 12
// bytes of scales and minima, [32 bytes of fifth bits,] 256 nibbles. Bit j of the 32 bytes belongs
// to sub-block j.
template <bool kHasFifthBit>
void decode_k_with_min(const std::byte* block, float* x) {
  const float d = half(block), dmin = half(block + 2);
  const std::byte* const high = block + 16;
  const std::byte* const low = high + (kHasFifthBit ? 32 : 0);
  for (int j = 0; j < 8; ++j) {
    const auto [scale, minimum] = scale_and_min(block + 4, j);
    const float step = d * static_cast<float>(scale);
    const float offset = dmin * static_cast<float>(minimum);
    for (int64_t i = 0; i < 32; ++i) {
      int q = k_nibble(low, 32 * j + i);
      if constexpr (kHasFifthBit) q |= (unsigned_at(high, i) >> j & 1) << 4;
      x[32 * j + i] = step * static_cast<float>(q) - offset;
    }
  }
}

// w = d * scale * (q - 32), with a scale for each 16 elements.
// 128 bytes of low nibbles, 64 bytes of upper pairs of bits, 16 i8 scales, f16 d. Each half of the
// block is 4 runs of 32: low halves of 64 bytes, then high ones; the pairs of run k at bit 2 k.
int code_q6_k(const std::byte* block, int64_t i) {
  const int64_t part = i / 128, run = i % 128 / 32, at = i % 32;
  const int byte = unsigned_at(block, part * 64 + run % 2 * 32 + at);
  const int low = run < 2 ? byte & 15 : byte >> 4;
  const int high = unsigned_at(block + 128, part * 32 + at) >> (2 * run) & 3;
  return (low | high << 4) - 32;
}

void decode_q6_k(const std::byte* block, float* x) {
  const float d = half(block + 208);
  for (int64_t i = 0; i < kSuperBlock; ++i) {
    const float step = d * static_cast<float>(signed_at(block + 192, i / 16));
    x[i] = step * static_cast<float>(code_q6_k(block, i));
  }
}

// ---- Blocks taken apart ------------------------------------------------------------------------

// The factor, and the minimum, of a block with one scale.
void set_scale(const std::byte* block, int minimum, GgufBlockValues& values) {
  values.scale = load<uint16_t>(block);
  values.min_scale = minimum == 0 ? uint16_t{0} : values.scale;
  std::fill_n(values.factors, kSmallBlock / kGgufGroup, int8_t{1});
  std::fill_n(values.minima, kSmallBlock / kGgufGroup, static_cast<uint8_t>(minimum));
}

template <int (*code)(const std::byte*, int64_t), int64_t kElements>
void codes_of(const std::byte* block, int8_t* codes) {
  for (int64_t i = 0; i < kElements; ++i) codes[i] = static_cast<int8_t>(code(block, i));
}

// One scale, no minimum.
int code_q8_0(const std::byte* block, int64_t i) { return signed_at(block + 2, i); }
void values_q8_0(const std::byte* block, GgufBlockValues& values) { set_scale(block, 0, values); }

// d * (q - 8) is d * q - d * 8, exactly.
int code_q4_0(const std::byte* block, int64_t i) { return nibble(block + 2, i); }
void values_q4_0(const std::byte* block, GgufBlockValues& values) { set_scale(block, 8, values); }

// d * q + m: the minimum is 1, its scale -m.
void set_offset(const std::byte* block, GgufBlockValues& values) {
  set_scale(block, 1, values);
  values.min_scale = load<uint16_t>(block + 2) ^ 0x8000;
}
int code_q4_1(const std::byte* block, int64_t i) { return nibble(block + 4, i); }

// The constant that decoding subtracts is taken from the code, which has room for it in 8 bits.
int code_q5_0(const std::byte* block, int64_t i) { return five_bits(block + 2, i) - 16; }
int code_q5_1(const std::byte* block, int64_t i) { return five_bits(block + 4, i); }

// Two neighbours of 16 elements have one factor and minimum.
int code_q4_k(const std::byte* block, int64_t i) { return k_nibble(block + 16, i); }
int code_q5_k(const std::byte* block, int64_t i) {
  const int high = unsigned_at(block + 16, i % 32) >> (i / 32) & 1;
  return k_nibble(block + 48, i) | high << 4;
}
void values_k_with_min(const std::byte* block, GgufBlockValues& values) {
  values.scale = load<uint16_t>(block);
  values.min_scale = load<uint16_t>(block + 2);
  for (int j = 0; j < 8; ++j) {
    const auto [scale, minimum] = scale_and_min(block + 4, j);
    std::fill_n(values.factors + 2 * j, 2, static_cast<int8_t>(scale));
    std::fill_n(values.minima + 2 * j, 2, static_cast<uint8_t>(minimum));
  }
}

// A factor for each 16 elements, with a sign.
void values_q6_k(const std::byte* block, GgufBlockValues& values) {
  values.scale = load<uint16_t>(block + 208);
  values.min_scale = 0;
  for (int64_t i = 0; i < 16; ++i) {
    values.factors[i] = static_cast<int8_t>(signed_at(block + 192, i));
    values.minima[i] = 0;
  }
}

constexpr GgufParts kQ4_0 = {4, 32, true, codes_of<code_q4_0, kSmallBlock>, values_q4_0};
constexpr GgufParts kQ4_1 = {4, 32, true, codes_of<code_q4_1, kSmallBlock>, set_offset};
constexpr GgufParts kQ5_0 = {8, 32, false, codes_of<code_q5_0, kSmallBlock>, values_q8_0};
constexpr GgufParts kQ5_1 = {8, 32, true, codes_of<code_q5_1, kSmallBlock>, set_offset};
constexpr GgufParts kQ8_0 = {8, 32, false, codes_of<code_q8_0, kSmallBlock>, values_q8_0};
constexpr GgufParts kQ4_K = {4, 32, true, codes_of<code_q4_k, kSuperBlock>, values_k_with_min};
constexpr GgufParts kQ5_K = {8, 32, true, codes_of<code_q5_k, kSuperBlock>, values_k_with_min};
constexpr GgufParts kQ6_K = {8, 16, false, codes_of<code_q6_k, kSuperBlock>, values_q6_k};

constexpr auto kTypes = std::to_array<GgufType>({
    {0, "F32", 1, 4, decode_all<1, 4, decode_f32>},
    {1, "F16", 1, 2, decode_all<1, 2, decode_f16>},
    {30, "BF16", 1, 2, decode_all<1, 2, decode_bf16>},
    {2, "Q4_0", kSmallBlock, 18, decode_all<kSmallBlock, 18, decode_q4_0>, &kQ4_0},
    {3, "Q4_1", kSmallBlock, 20, decode_all<kSmallBlock, 20, decode_q4_1>, &kQ4_1},
    {6, "Q5_0", kSmallBlock, 22, decode_all<kSmallBlock, 22, decode_q5_0>, &kQ5_0},
    {7, "Q5_1", kSmallBlock, 24, decode_all<kSmallBlock, 24, decode_q5_1>, &kQ5_1},
    {8, "Q8_0", kSmallBlock, 34, decode_all<kSmallBlock, 34, decode_q8_0>, &kQ8_0},
    {12, "Q4_K", kSuperBlock, 144, decode_all<kSuperBlock, 144, decode_k_with_min<false>>, &kQ4_K},
    {13, "Q5_K", kSuperBlock, 176, decode_all<kSuperBlock, 176, decode_k_with_min<true>>, &kQ5_K},
    {14, "Q6_K", kSuperBlock, 210, decode_all<kSuperBlock, 210, decode_q6_k>, &kQ6_K},
});

// Those without a decoder.
constexpr auto kOtherNames = std::to_array<std::pair<uint32_t, std::string_view>>(
    {{9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
     {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
     {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
     {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"}});

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

std::string gguf_type_name(uint32_t id) {
  if (const GgufType* type = find_gguf_type(id)) return std::string(type->name);
  for (const auto& [other, name] : kOtherNames) {
    if (other == id) return std::string(name);
  }
  return fmt::format("type {}", id);
}

std::string gguf_type_names() {
  std::string names;
  for (const GgufType& type : kTypes) {
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace sluice
