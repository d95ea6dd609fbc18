// Prefill attention on CUDA: refuses calls that no kernel supports, and chooses a kernel.
#include "ops/cuda/attention/prefill/prefill.h"

#include <algorithm>
#include <optional>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention/kv_tensor_map.h"
#include "ops/cuda/attention/prefill/columns.h"
#include "ops/cuda/attention/prefill/params.h"
#include "ops/cuda/attention/prefill/sm80.h"
#include "ops/cuda/attention/prefill/sm90.h"
#include "ops/cuda/attention/prefill/split.h"
#include "ops/cuda/attention/run.h"
#include "ops/cuda/attention/scratch.h"

namespace sluice::cuda {
namespace {

// Throws kUnsupported, as prefill_attention promises.
void check_supported(const AttentionArgs& args) {
  if (const GatheredPages* pages = gathered_in(args.selection)) {
    fail(ErrorCode::kUnsupported,
         "prefill attention on CUDA takes no gathered pages ({} entries from {} on); use pages in "
         "place, one row a sequence or the device 'cpu'",
         pages->list.num_entries, pages->list.first_entry);
  }
  // The kernels take the maximum before scaling, which a scale of 0 or less would invert.
  if (!(args.scale > 0.0f)) {
    fail(ErrorCode::kUnsupported, "prefill attention on CUDA needs a scale above 0, not {}",
         args.scale);
  }
}

// The most KV heads, dividing all of them, whose K and V of the longest run fit half of the L2
// cache: tiles of these heads run side by side.
int32_t heads_together(const AttentionArgs& args, int64_t l2_bytes) {
  const int64_t bytes_per_head = std::max<int64_t>(max_run_tokens(args), 1) * 2 *
                                 static_cast<int64_t>(args.kv.shape.token_bytes());
  int32_t heads = args.kv.shape.num_kv_heads;
  while (heads > 1 &&
         (args.kv.shape.num_kv_heads % heads != 0 || heads * bytes_per_head > l2_bytes / 2)) {
    --heads;
  }
  return heads;
}

// Everything but the tiles, which depend on the kernel.
PrefillParams make_params(const AttentionArgs& args, const cudaDeviceProp& gpu) {
  const bool has_state = args.state.acc.present();
  const int32_t num_q_heads = static_cast<int32_t>(args.q.dim(1));
  return {
      .q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
      .out = reinterpret_cast<uint16_t*>(args.out.bytes()),
      .acc = has_state ? args.state.acc.data<float>() : nullptr,
      .max = has_state ? args.state.max.data<float>() : nullptr,
      .sum = has_state ? args.state.sum.data<float>() : nullptr,
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .kv_begin = args.kv_begin.data<int32_t>(),
      .kv_end = args.kv_end.data<int32_t>(),
      .block_table = args.block_table.data<int32_t>(),
      .kv_base = args.kv.base,
      .kv_stride_bytes = static_cast<int64_t>(args.kv.stride_bytes),
      .num_seqs = static_cast<int32_t>(args.batch.first_pos.dim(0)),
      .num_q_heads = num_q_heads,
      .num_kv_heads = args.kv.shape.num_kv_heads,
      .group = num_q_heads / args.kv.shape.num_kv_heads,
      .head_dim = args.kv.shape.head_dim,
      .block_tokens = args.kv.shape.block_tokens,
      .max_blocks = static_cast<int32_t>(args.block_table.dim(1)),
      .heads_together = heads_together(args, gpu.l2CacheSize),
      .scale = args.scale,
      .first = args.first,
      .last = args.last,
      .is_fp8 = args.kv.shape.element == KvElement::kE4m3,
  };
}

PrefillLists make_lists(const PageList& pages) {
  return {.page_ids = pages.page_ids.data<int32_t>(),
          .page_count = pages.page_count.data<int32_t>(),
          .num_list_heads = static_cast<int32_t>(pages.page_ids.dim(1)),
          .num_q_pages = static_cast<int32_t>(pages.page_ids.dim(2)),
          .max_pages = static_cast<int32_t>(pages.page_ids.dim(3)),
          .page_tokens = pages.page_tokens,
          .q_page_tokens = pages.q_page_tokens};
}

PrefillMask make_mask(const TileMask& mask) {
  return {.bits = reinterpret_cast<const uint32_t*>(mask.bits.data<int32_t>()),
          .num_list_heads = static_cast<int32_t>(mask.bits.dim(1)),
          .num_q_tiles = static_cast<int32_t>(mask.bits.dim(2)),
          .num_words = static_cast<int32_t>(mask.bits.dim(3)),
          .first_q_tile = mask.first_q_tile};
}

// Without the fields of find_columns.
PrefillColumns make_columns(const TileColumns& columns) {
  return {.positions = columns.positions.data<int32_t>(),
          .count = columns.count.data<int32_t>(),
          .kv = reinterpret_cast<const uint16_t*>(columns.kv.bytes()),
          .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
          .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
          .segment_tokens = columns.segment_tokens,
          .first_segment = columns.first_segment};
}

// The copies of columns as blocks of max_columns tokens, one a segment.
KvBlocksView blocks_of_columns(const AttentionArgs& args) {
  const TensorView& kv = masked_in(args.selection)->columns.kv;
  KvBlocksView view{
      .base = kv.bytes(), .num_blocks = static_cast<int32_t>(kv.dim(0)), .shape = args.kv.shape};
  view.shape.block_tokens = static_cast<int32_t>(kv.dim(3));
  view.shape.element = KvElement::kBFloat16;  // whatever the blocks have
  view.stride_bytes = view.shape.block_bytes();
  return view;
}

// What a call selects, as values that outlive the launch.
struct CallSelection {
  std::optional<PrefillLists> lists;
  std::optional<PrefillMask> mask;
  std::optional<PrefillColumns> columns;

  PrefillSelection pointers() const {
    return {.lists = lists ? &*lists : nullptr,
            .mask = mask ? &*mask : nullptr,
            .columns = columns ? &*columns : nullptr};
  }
};

// Columns belong to the last call of a walk. Throws kUnsupported if the scratch cannot hold what
// find_columns writes.
CallSelection make_selection(const AttentionArgs& args) {
  CallSelection selection;
  if (const PageList* pages = listed_in(args.selection)) selection.lists = make_lists(*pages);
  const MaskedTiles* tiles = masked_in(args.selection);
  if (tiles == nullptr) return selection;
  selection.mask = make_mask(tiles->mask);
  const TileColumns& columns = tiles->columns;
  if (!args.last || !columns.present() || columns.positions.dim(2) == 0) return selection;
  selection.columns = make_columns(columns);
  const size_t num_bytes = found_columns_bytes(*selection.mask, *selection.columns);
  if (num_bytes > AttentionScratch::data_bytes()) {
    fail(ErrorCode::kUnsupported,
         "prefill attention on CUDA has {} bytes of scratch, and {} query tiles with up to {} "
         "columns each need {}; attend fewer rows a call or select fewer columns",
         AttentionScratch::data_bytes(), selection.mask->num_q_tiles,
         selection.columns->max_columns, num_bytes);
  }
  return selection;
}

// Upper bounds: only the device knows where each sequence begins, and a sequence may waste a part
// of its last tile.
void count_tiles(const AttentionArgs& args, int32_t tile_rows, PrefillParams& params) {
  const int32_t of_longest = (args.batch.max_rows * params.group + tile_rows - 1) / tile_rows;
  const auto num_rows = static_cast<int32_t>(args.q.dim(0));
  params.num_q_tiles =
      std::min(params.num_seqs * of_longest, num_rows * params.group / tile_rows + params.num_seqs);
  params.num_tiles = params.num_kv_heads * params.num_q_tiles;
}

// Tiles that a CTA computes in turn: with two, the beginning of one overlaps with the end of the
// other. Only with enough CTAs per multiprocessor to keep their load even.
int32_t tiles_per_cta(const PrefillParams& params, const cudaDeviceProp& gpu) {
  constexpr int32_t kCtasPerProcessor = 6;
  return std::clamp(params.num_tiles / (gpu.multiProcessorCount * kCtasPerProcessor), 1, 2);
}

// Sets the fields of split tiles, unless the registers of their first parts exceed the scratch.
void split_tiles(const AttentionScratch& scratch, const Split& split, PrefillParams& params) {
  const size_t num_bytes = sm90::handed_over_bytes(params.head_dim) * split.num_tiles;
  if (num_bytes > AttentionScratch::data_bytes()) return;
  params.num_split = split.num_tiles;
  params.split_step = split.longest_second / static_cast<float>(split.num_tiles + 1);
  params.handed_over = reinterpret_cast<float4*>(scratch.data());
  params.num_begun = scratch.counters();
  params.is_handed = scratch.counters() + 1;
}

// Tokens of a tile of the Hopper kernel, or 0: not this GPU, this build or this call.
int32_t hopper_tile_tokens(const AttentionArgs& args, const PrefillSelection& selection,
                           const cudaDeviceProp& gpu) {
  if (gpu.major != 9 || gpu.minor != 0) return 0;
  if (args.kv.num_blocks == 0) return 0;  // nothing to describe
  const bool is_fp8 = args.kv.shape.element == KvElement::kE4m3;
  if (is_fp8 && !selection.is_everything()) return 0;
  return sm90::tile_tokens(args.kv.shape.head_dim, args.kv.shape.block_tokens);
}

// Launches the Hopper kernel for the KV element. e4m3 needs no tensor map: its tiles are copied as
// neighbouring bytes. REQUIRES: hopper_tile_tokens has chosen the kernel.
cudaError_t launch_hopper(cudaStream_t handle, const AttentionArgs& args,
                          const PrefillParams& params, const PrefillSelection& selection,
                          int32_t tile_tokens) {
  if (params.is_fp8) return sm90::launch_prefill_e4m3(handle, params);
  const CUtensorMap map = make_kv_tensor_map(args.kv, tile_tokens);
  std::optional<CUtensorMap> column_map;
  if (selection.columns != nullptr) {
    column_map = make_kv_tensor_map(blocks_of_columns(args), tile_tokens);
  }
  return sm90::launch_prefill(handle, params, selection, map, column_map ? &*column_map : nullptr);
}

}  // namespace

void prefill_attention(CudaStream& stream, const AttentionArgs& args) {
  check_supported(args);
  SLUICE_CHECK(has_kv_tensor_map(args.kv), "blocks lie at {}, {} bytes apart; both must be 16-byte",
               static_cast<const void*>(args.kv.base), args.kv.stride_bytes);
  if (args.batch.max_rows == 0 || args.batch.first_pos.dim(0) == 0) return;
  const cudaDeviceProp& gpu = stream.cuda_device().properties();
  PrefillParams params = make_params(args, gpu);
  CallSelection values = make_selection(args);
  const PrefillSelection selection = values.pointers();
  const int32_t tile_tokens = hopper_tile_tokens(args, selection, gpu);
  stream.submit("attention", [&](cudaStream_t handle) {
    if (values.columns) {
      place_found_columns(*values.mask, attention_scratch(stream).data(), *values.columns);
      check_cuda(find_columns(handle, params, *values.mask, *values.columns),
                 "launch of prefill attention's columns");
    }
    if (tile_tokens > 0) {
      count_tiles(args, sm90::kRowsPerTile, params);
      params.tiles_per_cta = tiles_per_cta(params, gpu);
      if (selection.is_everything()) {
        const LaunchTiles launch{params.num_tiles, params.tiles_per_cta, gpu.multiProcessorCount};
        split_tiles(attention_scratch(stream), choose_split(args, launch), params);
      }
      check_cuda(launch_hopper(handle, args, params, selection, tile_tokens),
                 "launch of prefill attention");
    } else {
      count_tiles(args, sm80::kRowsPerTile, params);
      check_cuda(sm80::launch_prefill(handle, params, selection), "launch of prefill attention");
    }
  });
}

}  // namespace sluice::cuda
