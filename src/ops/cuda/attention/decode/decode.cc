// Decode attention on CUDA: cuts a call into rounds that fit the scratch, and chooses the kernels
// of each round. Every choice depends on shapes and upper bounds only, so that a graph can replay
// it, and all kernels for a head_dim give the same bits. Thread rule: host thread, enqueue only.
#include "ops/cuda/attention/decode/decode.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention/decode/choice.h"
#include "ops/cuda/attention/decode/kernels.h"
#include "ops/cuda/attention/run.h"
#include "ops/cuda/attention/scratch.h"

namespace sluice::cuda {
namespace {

int32_t ceil_div(int64_t value, int32_t by) { return static_cast<int32_t>((value + by - 1) / by); }

// Without lists page_ids stays null, which selects the kernels that attend every token.
void add_pages(const AttentionArgs& args, DecodeParams& params) {
  const PageList* pages = listed_in(args.selection);
  if (pages == nullptr) return;
  params.page_ids = pages->page_ids.data<int32_t>();
  params.page_count = pages->page_count.data<int32_t>();
  params.num_list_heads = static_cast<int32_t>(pages->page_ids.dim(1));
  params.max_pages = static_cast<int32_t>(pages->page_ids.dim(3));
  params.page_tokens = pages->page_tokens;
  const GatheredPages* gathered = gathered_in(args.selection);
  if (gathered == nullptr) return;
  params.gathered = true;
  params.first_entry = pages->first_entry;
  params.num_entries = pages->num_entries;
  if (!gathered->places.present()) return;
  params.page_places = gathered->places.data<int32_t>();
  params.max_places = static_cast<int32_t>(gathered->places.dim(3));
}

// Everything but the scratch, the states and the round.
DecodeParams make_params(const AttentionArgs& args) {
  const int32_t num_q_heads = static_cast<int32_t>(args.q.dim(1));
  const KvBlockShape& shape = args.kv.shape;
  // Windows follow the blocks that gathered pages came from, so that they are those of pages in
  // place.
  const GatheredPages* gathered = gathered_in(args.selection);
  const int32_t block_tokens =
      gathered != nullptr ? gathered->source_block_tokens : shape.block_tokens;
  const int32_t window_tokens = decode_window_tokens(block_tokens);
  DecodeParams params = {
      .q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .kv_begin = args.kv_begin.data<int32_t>(),
      .kv_end = args.kv_end.data<int32_t>(),
      .kv_base = args.kv.base,
      .kv_stride_bytes = static_cast<int64_t>(args.kv.stride_bytes),
      .block_tokens = shape.block_tokens,
      .num_q_heads = num_q_heads,
      .num_kv_heads = shape.num_kv_heads,
      .group = num_q_heads / shape.num_kv_heads,
      .head_dim = shape.head_dim,
      .window_tokens = window_tokens,
      .window_shift = std::countr_zero(static_cast<uint32_t>(window_tokens)),
      .windows_per_block = block_tokens / window_tokens,
      .scale = args.scale,
      .codes = kv_codes(shape),
      .codec = kv_codec(shape.element),
  };
  if (gathered == nullptr) {
    params.block_table = args.block_table.data<int32_t>();
    params.max_blocks = static_cast<int32_t>(args.block_table.dim(1));
  }
  if (args.zones.present()) {
    params.q_before = reinterpret_cast<const uint16_t*>(args.zones.before.bytes());
    params.q_far = reinterpret_cast<const uint16_t*>(args.zones.far.bytes());
    params.chunk_tokens = args.zones.chunk_tokens;
  }
  add_pages(args, params);
  return params;
}

// Bytes of one open window, the larger of two kernels' needs. block.cu: a warp for each strip of 32
// tokens and each 8 query heads of a KV head, 4 + head_dim / 4 numbers per lane; general.cu: 10
// numbers per lane and query head.
size_t open_window_bytes(const DecodeParams& params) {
  constexpr size_t kStrips = kMaxWindowTokens / 32;
  const int32_t tiles_of_group = params.group <= 8 ? 1 : ceil_div(params.group, 16) * 2;
  const auto head_tiles = static_cast<size_t>(params.num_kv_heads) * tiles_of_group;
  const size_t of_strips = head_tiles * kStrips * static_cast<size_t>(4 + params.head_dim / 4);
  const size_t of_heads = static_cast<size_t>(params.num_q_heads) * 10;
  return std::max(of_strips, of_heads) * 32 * sizeof(float);
}

// Launches a call round by round: some of its sequences and a range of their windows at a time.
class Rounds {
 public:
  Rounds(CudaStream& stream, const AttentionArgs& args)
      : stream_(stream), args_(args), params_(make_params(args)) {
    cut_scratch(attention_scratch(stream));
  }

  void run() {
    const auto num_seqs = static_cast<int32_t>(args_.batch.first_pos.dim(0));
    int32_t num_windows = ceil_div(max_run_tokens(args_), params_.window_tokens);
    // If only shown windows are computed, the scratch holds no others: a list shows at most one
    // window per page.
    const int32_t most_found = std::min(num_windows, params_.max_pages);
    if (deals_listed_windows(round_of(num_windows, false), lists()) && most_found <= max_windows_) {
      params_.num_found = num_found_;
      num_windows = most_found;
    }
    // Limited by the scratch for windows and by the counters, one per sequence and query head.
    const int64_t seqs_at_once =
        std::max<int64_t>(1, std::min(max_windows_ / std::max(1, num_windows),
                                      AttentionScratch::kMaxCounters / params_.num_q_heads));
    for (int32_t seq = 0; seq < num_seqs; seq += params_.num_seqs) {
      params_.first_seq = seq;
      params_.num_seqs = static_cast<int32_t>(std::min<int64_t>(seqs_at_once, num_seqs - seq));
      run_sequences(num_windows);
    }
  }

 private:
  // Layout of the scratch: two places for open windows, counters of shown windows, the carried
  // state of one sequence, (max, sum) of windows, then their acc. max_windows_ is what the rest
  // holds.
  void cut_scratch(AttentionScratch& scratch) {
    const int64_t heads = params_.num_q_heads;
    std::byte* next = scratch.data();
    const auto take = [&next](size_t num_bytes) {
      std::byte* taken = next;
      next += (num_bytes + 255) / 256 * 256;
      return taken;
    };
    params_.num_arrived = scratch.counters();
    auto* open = reinterpret_cast<float*>(take(open_window_bytes(params_)));
    auto* resumed = reinterpret_cast<float*>(take(open_window_bytes(params_)));
    if (params_.gathered && scratch.next_open_place() == 1) std::swap(open, resumed);
    num_found_ = reinterpret_cast<int32_t*>(take(AttentionScratch::kCounterBytes));
    params_.open_windows = open;
    params_.resumed_windows = resumed;
    carry_.is_carry = true;
    carry_.acc = reinterpret_cast<float*>(take(heads * params_.head_dim * sizeof(float)));
    carry_.max = reinterpret_cast<float*>(take(heads * sizeof(float)));
    carry_.sum = reinterpret_cast<float*>(take(heads * sizeof(float)));
    const size_t window_bytes = heads * (params_.head_dim * sizeof(float) + sizeof(float2));
    const size_t left_bytes =
        AttentionScratch::data_bytes() - static_cast<size_t>(next - scratch.data());
    max_windows_ = static_cast<int64_t>((left_bytes - 256) / window_bytes);
    params_.partial_max_sum =
        reinterpret_cast<float2*>(take(max_windows_ * heads * sizeof(float2)));
    params_.partial_acc = reinterpret_cast<float*>(next);
  }

  // Rounds of one group of sequences, in order of position: windows that exceed the scratch go to a
  // later round, and the state is carried between rounds.
  void run_sequences(int32_t num_windows) {
    // Even a sequence alone may exceed the scratch: then `most` windows a round.
    const auto most = static_cast<int32_t>(std::min<int64_t>(max_windows_, num_windows));
    params_.first_window = 0;
    do {
      params_.num_windows = std::min(most, num_windows - params_.first_window);
      choose_states(params_.first_window + params_.num_windows >= num_windows);
      launch_round(most == num_windows);
      params_.first_window += params_.num_windows;
    } while (params_.first_window < num_windows);
  }

  // One kernel for the windows and one for the fold. Sets params_.records, which both read.
  void launch_round(bool is_only_round) {
    const cudaDeviceProp& gpu = stream_.cuda_device().properties();
    const DecodeChoice choice =
        choose_decode_kernel(round_of(params_.num_windows, is_only_round),
                             {.shared_bytes = gpu.sharedMemPerBlockOptin,
                              .num_multiprocessors = gpu.multiProcessorCount});
    params_.records = choice.records;
    switch (choice.kernel) {
      case DecodeKernel::kWave:
        launch_decode_wave(stream_, params_);
        break;
      case DecodeKernel::kListed:
        launch_decode_listed_windows(stream_, params_);
        break;
      case DecodeKernel::kWindows:
        if (params_.num_windows > 0) launch_decode_windows(stream_, params_);
        break;
      case DecodeKernel::kGeneral:
        if (params_.num_windows > 0) launch_decode_windows_general(stream_, params_);
        break;
    }
    launch_decode_combine(stream_, params_);
  }

  DecodeRound round_of(int32_t num_windows, bool is_only_round) const {
    return {.head_dim = params_.head_dim,
            .group = params_.group,
            .num_kv_heads = params_.num_kv_heads,
            .window_tokens = params_.window_tokens,
            .num_seqs = params_.num_seqs,
            .num_windows = num_windows,
            .max_windows = max_windows_,
            .is_only = is_only_round,
            .has_lists = params_.page_ids != nullptr,
            .deals_listed = params_.num_found != nullptr,
            .is_coded = params_.codes != KvCodes::kNone,
            .has_zones = params_.chunk_tokens > 0};
  }

  DecodeLists lists() const {
    return {.page_tokens = params_.page_tokens,
            .max_pages = params_.max_pages,
            .is_whole = !params_.gathered ||
                        (params_.first_entry == 0 && params_.num_entries >= params_.max_pages)};
  }

  // The state that a round reads and writes: the call's own at the ends, the carry between rounds.
  void choose_states(bool is_last_round) {
    DecodeState own;
    if (args_.state.acc.present()) {
      own.acc = args_.state.acc.data<float>();
      own.max = args_.state.max.data<float>();
      own.sum = args_.state.sum.data<float>();
    }
    const bool is_later_part = params_.gathered && params_.first_entry > 0;
    const bool is_first_round = params_.first_window == 0;
    params_.from = !is_first_round ? carry_ : args_.first ? DecodeState{} : own;
    // Later rounds and later parts start from a state also where the run begins at token 0.
    params_.zero_is_empty = is_first_round && !is_later_part;
    params_.to = is_last_round ? own : carry_;
    const bool writes_out = is_last_round && args_.last;
    params_.out = writes_out ? reinterpret_cast<uint16_t*>(args_.out.bytes()) : nullptr;
  }

  CudaStream& stream_;
  const AttentionArgs& args_;
  DecodeParams params_;
  DecodeState carry_;
  int32_t* num_found_ = nullptr;
  int64_t max_windows_ = 0;  // that fit the scratch, of all sequences of a round together
};

}  // namespace

int32_t decode_window_tokens(int32_t block_tokens) {
  return std::gcd(block_tokens, kMaxWindowTokens);
}

void decode_attention(CudaStream& stream, const AttentionArgs& args) {
  // Kernels copy pieces of 16 bytes.
  const auto lies_even = [](const TensorView& q) {
    return reinterpret_cast<uintptr_t>(q.bytes()) % 16 == 0;  // or is absent
  };
  const bool is_aligned = reinterpret_cast<uintptr_t>(args.kv.base) % 16 == 0 &&
                          args.kv.stride_bytes % 16 == 0 && lies_even(args.q) &&
                          lies_even(args.zones.before) && lies_even(args.zones.far);
  SLUICE_CHECK(is_aligned, "q at {}, blocks at {}, {} bytes apart; all must be 16-byte",
               static_cast<const void*>(args.q.bytes()), static_cast<const void*>(args.kv.base),
               args.kv.stride_bytes);
  stream.submit("attention", [&](cudaStream_t) { Rounds(stream, args).run(); });
}

}  // namespace sluice::cuda
