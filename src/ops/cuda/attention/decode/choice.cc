// Limits of each kernel, and from where on it is the fastest.
#include "ops/cuda/attention/decode/choice.h"

namespace sluice::cuda {
namespace {

// Below this many windows (128K tokens) it is faster to visit all windows of a list than to search
// the list for those it shows (docs/kernels/cuda_attention.md).
constexpr int32_t kLeastDealtWindows = 512;

// Head sizes of all kernels on tensor cores.
bool is_fast(const DecodeRound& round) { return round.head_dim == 64 || round.head_dim == 128; }
// And of kWindows, where keys and values take turns in the same shared memory; those of the others
// would not fit a multiprocessor.
bool has_windows(const DecodeRound& round) { return is_fast(round) || round.head_dim == 256; }

// The wave takes most of the shared memory of a multiprocessor of Hopper, which other GPUs do not
// have, and neither lists nor small windows.
bool may_be_wave(const DecodeRound& round, const DecodeGpu& gpu) {
  return is_fast(round) && round.is_only && !round.has_lists && !round.is_coded &&
         !round.has_zones && gpu.shared_bytes >= kWaveSharedBytes &&
         round.window_tokens == kMaxWindowTokens;
}

int64_t windows_of_all_heads(const DecodeRound& round) {
  return int64_t{round.num_seqs} * round.num_windows * round.num_kv_heads;
}

// A wave gains where each CTA has some windows, but not many. Fewer windows than half of the
// multiprocessors were not measured.
bool fits_wave(const DecodeRound& round, const DecodeGpu& gpu) {
  const int64_t num_windows = windows_of_all_heads(round);
  return round.group <= kMaxWaveGroup && round.num_seqs <= kMaxWaveSequences &&
         2 * num_windows >= gpu.num_multiprocessors &&
         num_windows <= int64_t{kMaxWaveWindows} * gpu.num_multiprocessors;
}

// Few windows leave multiprocessors idle; halves make twice as many CTAs.
bool splits_halves(const DecodeRound& round, const DecodeGpu& gpu) {
  return round.window_tokens == kMaxWindowTokens && round.num_windows <= kFewWindows &&
         2 * int64_t{round.num_seqs} * round.num_windows <= round.max_windows &&
         windows_of_all_heads(round) <= 2 * int64_t{gpu.num_multiprocessors};
}

}  // namespace

DecodeChoice choose_decode_kernel(const DecodeRound& round, const DecodeGpu& gpu) {
  if (!has_windows(round)) return {.kernel = DecodeKernel::kGeneral};
  if (may_be_wave(round, gpu) && fits_wave(round, gpu)) return {.kernel = DecodeKernel::kWave};
  if (round.deals_listed) return {.kernel = DecodeKernel::kListed};
  return {.kernel = DecodeKernel::kWindows, .records = splits_halves(round, gpu) ? 2 : 1};
}

bool deals_listed_windows(const DecodeRound& call, const DecodeLists& lists) {
  if (lists.page_tokens == 0 || !lists.is_whole || !is_fast(call)) return false;
  if (call.is_coded || call.group > 8) return false;
  if (call.window_tokens != kMaxWindowTokens) return false;
  if (kMaxWindowTokens % lists.page_tokens != 0) return false;
  const int64_t listed_tokens = int64_t{lists.max_pages} * lists.page_tokens;
  return call.num_windows >= kLeastDealtWindows &&
         4 * listed_tokens <= int64_t{call.num_windows} * kMaxWindowTokens;
}

}  // namespace sluice::cuda
