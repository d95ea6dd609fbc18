// Which decode attention kernel computes a round, as one pure function of shapes and GPU.
//
// Used by decode.cc; tested on machines without a GPU. No choice changes a bit of the result: the
// kernels share strips, halves, windows and the order of the fold (decode.h).
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::cuda {

// Tokens of a window where block_tokens is a multiple of it, as in all usual block sizes. A bit
// mask of its tiles has 16 bits.
inline constexpr int32_t kMaxWindowTokens = 256;

// The fold of few windows adds up halves, so at most this many windows of a sequence may be halves.
inline constexpr int32_t kFewWindows = 32;

// Limits of a wave: sequences (one per lane of a warp), windows a multiprocessor, and query heads a
// KV head.
inline constexpr int32_t kMaxWaveSequences = 32;
inline constexpr int32_t kMaxWaveWindows = 4;
inline constexpr int32_t kMaxWaveGroup = 8;
inline constexpr size_t kWaveSharedBytes = 224 * 1024;  // of Hopper's 227

enum class DecodeKernel {
  kWave,     // wave.cu: one CTA a multiprocessor computes windows until none is left
  kListed,   // listed.cu: CTAs share out the windows that the page lists show
  kWindows,  // block.cu: a CTA for each window, or for each half
  kGeneral,  // general.cu: any head_dim, without tensor cores
};

// One round of a call (params.h).
struct DecodeRound {
  int32_t head_dim = 0;
  int32_t group = 0;  // query heads a KV head
  int32_t num_kv_heads = 0;
  int32_t window_tokens = 0;
  int32_t num_seqs = 0;
  int32_t num_windows = 0;    // of the longest sequence
  int64_t max_windows = 0;    // that the scratch holds, of all sequences together
  bool is_only = true;        // no other round of these sequences
  bool has_lists = false;     // of pages
  bool deals_listed = false;  // deals_listed_windows says so
  bool is_coded = false;      // KV in codes, which kWindows and kGeneral alone read
  bool has_zones = false;     // queries differ by zones of keys, which kWave does not know
};

struct DecodeGpu {
  size_t shared_bytes = 0;  // that a block may have
  int32_t num_multiprocessors = 0;
};

struct DecodeChoice {
  DecodeKernel kernel = DecodeKernel::kGeneral;
  int32_t records = 1;  // 2: each half of a window has a CTA and a record of its own
};

DecodeChoice choose_decode_kernel(const DecodeRound& round, const DecodeGpu& gpu);

// The page lists of a call.
struct DecodeLists {
  int32_t page_tokens = 0;  // 0: no lists
  int32_t max_pages = 0;    // width of a list
  bool is_whole = true;     // false: a part of a gathered list, which may begin inside a window
};

// Whether a call of this many windows a sequence computes only the windows that its lists show
// (kListed), instead of visiting all of them. REQUIRES: `call` has head_dim, group, window_tokens
// and num_windows.
bool deals_listed_windows(const DecodeRound& call, const DecodeLists& lists);

}  // namespace sluice::cuda
