// Prefill attention on CUDA: refuses calls that no kernel supports, and chooses a kernel.
#include "ops/cuda/attention/prefill/prefill.h"

#include <algorithm>
#include <optional>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention/converted_kv.h"
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
  if (args.zones.present() && listed_in(args.selection) != nullptr) {
    fail(ErrorCode::kUnsupported,
         "prefill attention on CUDA takes no page lists where queries differ by zones of keys; "
         "attend all tokens, take a mask or use the device 'cpu'");
  }
  // The kernels take the maximum before scaling, which a scale of 0 or less would invert.
  if (!(args.scale > 0.0f)) {
    fail(ErrorCode::kUnsupported, "prefill attention on CUDA needs a scale above 0, not {}",
         args.scale);
  }
}

// The most KV heads, dividing those of `kv`, whose K and V of the longest run fit half of the L2
// cache: tiles of these heads run side by side.
int32_t heads_together(const AttentionArgs& args, const KvBlockShape& kv, int64_t l2_bytes) {
  const int64_t bytes_per_head = std::max<int64_t>(max_run_tokens(args), 1) * 2 *
                                 static_cast<int64_t>(kv.keys().token_bytes());
  int32_t heads = kv.num_kv_heads;
  while (heads > 1 && (kv.num_kv_heads % heads != 0 || heads * bytes_per_head > l2_bytes / 2)) {
    --heads;
  }
  return heads;
}

// Everything but the tiles, which depend on the kernel.
PrefillParams make_params(const AttentionArgs& args, const cudaDeviceProp& gpu) {
  const bool has_state = args.state.acc.present();
  const int32_t num_q_heads = static_cast<int32_t>(args.q.dim(1));
  const QueryZones& zones = args.zones;
  return {
      .q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
      .q_before = reinterpret_cast<const uint16_t*>(zones.before.bytes()),
      .q_far = reinterpret_cast<const uint16_t*>(zones.far.bytes()),
      .chunk_tokens = zones.present() ? zones.chunk_tokens : 0,
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
      .heads_together = heads_together(args, args.kv.shape, gpu.l2CacheSize),
      .scale = args.scale,
      .first = args.first,
      .last = args.last,
      .is_coded = args.kv.shape.element != KvElement::kBFloat16,
      .codec = kv_codec(args.kv.shape.element),
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
          .num_kv_heads = static_cast<int32_t>(columns.kv.dim(1)),
          .num_segments = static_cast<int32_t>(columns.positions.dim(1)),
          .max_columns = static_cast<int32_t>(columns.positions.dim(2)),
          .segment_tokens = columns.segment_tokens,
          .first_segment = columns.first_segment,
          .max_visits = static_cast<int32_t>(columns.positions.dim(2)) / kMaskTileTokens + 2};
}

// The copies of columns as blocks of max_columns tokens, one a segment.
KvBlocksView blocks_of_columns(const AttentionArgs& args) {
  const TensorView& kv = masked_in(args.selection)->columns.kv;
  KvBlocksView view{
      .base = kv.bytes(), .num_blocks = static_cast<int32_t>(kv.dim(0)), .shape = args.kv.shape};
  view.shape.block_tokens = static_cast<int32_t>(kv.dim(3));
  view.shape.element = KvElement::kBFloat16;  // whatever the blocks have
  view.shape.keys_in_bf16 = false;
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
int32_t hopper_tile_tokens(const AttentionArgs& args, const cudaDeviceProp& gpu) {
  if (gpu.major != 9 || gpu.minor != 0) return 0;
  if (args.kv.num_blocks == 0) return 0;  // nothing to describe
  return sm90::tile_tokens(args.kv.shape.head_dim, args.kv.shape.block_tokens);
}

// ---- A call, or a part of it -------------------------------------------------------------------

struct Call {
  CudaStream& stream;
  cudaStream_t handle;
  const AttentionArgs& args;
  const cudaDeviceProp& gpu;
  int32_t tile_tokens = 0;  // of the Hopper kernel; 0: the general one
};

void launch_general(const Call& call, PrefillParams params, const PrefillSelection& selection) {
  count_tiles(call.args, sm80::kRowsPerTile, params);
  check_cuda(sm80::launch_prefill(call.handle, params, selection), "launch of prefill attention");
}

// REQUIRES: `kv` is where the keys of `params` lie.
void launch_hopper(const Call& call, const KvBlocksView& kv, PrefillParams params,
                   const PrefillSelection& selection, const KvBlocksView* columns) {
  count_tiles(call.args, sm90::kRowsPerTile, params);
  params.tiles_per_cta = tiles_per_cta(params, call.gpu);
  const bool is_whole_kernel = params.is_coded && params.chunk_tokens > 0;  // has no parts
  if (selection.is_everything() && !is_whole_kernel) {
    const LaunchTiles launch{params.num_tiles, params.tiles_per_cta, call.gpu.multiProcessorCount};
    split_tiles(attention_scratch(call.stream), choose_split(call.args, launch), params);
  }
  // Codes need no tensor map: their tiles are copied as neighbouring bytes.
  if (params.is_coded) {
    check_cuda(sm90::launch_prefill_codes(call.handle, params), "launch of prefill attention");
    return;
  }
  const CUtensorMap map = make_kv_tensor_map(kv, call.tile_tokens);
  std::optional<CUtensorMap> column_map;
  if (columns != nullptr) column_map = make_kv_tensor_map(*columns, call.tile_tokens);
  check_cuda(sm90::launch_prefill(call.handle, params, selection, map,
                                  column_map ? &*column_map : nullptr),
             "launch of prefill attention");
}

// The parameters of a part of the call, whose KV is converted. Heads keep their distance in q, out
// and state, so only where they begin changes; likewise for sequences.
PrefillParams params_of(const Call& call, PrefillParams params, const CallPart& part,
                        const ConvertedKv& converted) {
  const int64_t q_head = int64_t{part.first_head} * params.group;
  params.q += q_head * params.head_dim;
  if (params.chunk_tokens > 0) {
    params.q_before += q_head * params.head_dim;
    params.q_far += q_head * params.head_dim;
  }
  params.out += q_head * params.head_dim;
  if (params.acc != nullptr) {
    params.acc += q_head * params.head_dim;
    params.max += q_head;
    params.sum += q_head;
  }
  params.row_begin += part.first_seq;
  params.first_pos += part.first_seq;
  params.kv_begin += part.first_seq;
  params.kv_end += part.first_seq;
  params.block_table = converted.block_table;
  params.max_blocks = converted.max_blocks;
  params.kv_base = converted.kv.base;
  params.kv_stride_bytes = static_cast<int64_t>(converted.kv.stride_bytes);
  params.num_seqs = part.num_seqs;
  params.num_kv_heads = part.num_heads;
  params.heads_together = heads_together(call.args, converted.kv.shape, call.gpu.l2CacheSize);
  params.is_coded = false;
  return params;
}

// What a part of the call selects. Lists that all heads share stay where they are.
CallSelection selection_of(CallSelection selection, const CallPart& part, int32_t head_dim) {
  if (selection.lists) {
    PrefillLists& lists = *selection.lists;
    const int64_t head = lists.num_list_heads == 1 ? 0 : part.first_head;
    const int64_t first =
        (int64_t{part.first_seq} * lists.num_list_heads + head) * lists.num_q_pages;
    lists.page_ids += first * lists.max_pages;
    lists.page_count += first;
  }
  if (!selection.mask) return selection;
  PrefillMask& mask = *selection.mask;
  const int64_t head = mask.num_list_heads == 1 ? 0 : part.first_head;
  const int64_t first = (int64_t{part.first_seq} * mask.num_list_heads + head) * mask.num_q_tiles;
  mask.bits += first * mask.num_words;
  if (!selection.columns) return selection;
  PrefillColumns& columns = *selection.columns;  // of one sequence
  const int64_t first_tile = head * mask.num_q_tiles;
  columns.positions += head * columns.num_segments * columns.max_columns;
  columns.count += head * columns.num_segments;
  columns.kv += int64_t{part.first_head} * 2 * columns.max_columns * head_dim;
  columns.kept += first_tile * columns.max_visits;
  columns.tiles += first_tile * columns.max_visits;
  columns.num_tiles += first_tile;
  columns.zone_begins += 2 * first_tile;
  return selection;
}

KvBlocksView columns_of(KvBlocksView columns, const CallPart& part) {
  columns.base += columns.shape.key_offset(part.first_head);
  columns.shape.num_kv_heads = part.num_heads;
  return columns;
}

// Converts KV in codes part by part, and attends each part as bf16. `part` is the first one.
void attend_converted(const Call& call, const PrefillParams& params, const CallSelection& values,
                      CallPart part, const KvScratch& scratch) {
  const int32_t num_seqs = params.num_seqs;
  const int32_t seqs_at_once = part.num_seqs;
  for (; part.first_seq < num_seqs; part.first_seq += seqs_at_once) {
    part.num_seqs = std::min(seqs_at_once, num_seqs - part.first_seq);
    for (part.first_head = 0; part.first_head < params.num_kv_heads;
         part.first_head += part.num_heads) {
      const ConvertedKv converted = convert_kv(call.handle, call.args, part, scratch);
      const CallSelection selected = selection_of(values, part, params.head_dim);
      std::optional<KvBlocksView> columns;
      if (values.columns) columns = columns_of(blocks_of_columns(call.args), part);
      const PrefillParams of_part = params_of(call, params, part, converted);
      if (call.tile_tokens == 0) {
        launch_general(call, of_part, selected.pointers());
        continue;
      }
      launch_hopper(call, converted.kv, of_part, selected.pointers(),
                    columns ? &*columns : nullptr);
    }
  }
}

// Whether converting all KV first takes less time than turning it tile by tile: from about five
// tiles of rows on. Both give the same bits.
bool has_rows_to_convert(const AttentionArgs& args, const PrefillParams& params) {
  constexpr int32_t kLeastTiles = 8;
  return int64_t{args.batch.max_rows} * params.group >= kLeastTiles * sm90::kRowsPerTile;
}

void attend(const Call& call, const PrefillParams& params, const CallSelection& values) {
  const PrefillSelection selection = values.pointers();
  int32_t tile_tokens = call.tile_tokens;
  // No kernel reads values in codes beside keys in bf16, on any GPU.
  const bool is_mixed = kv_codes(call.args.kv.shape) == KvCodes::kValues;
  if (is_mixed || (tile_tokens > 0 && params.is_coded)) {
    // The kernel that turns tiles has no selections and no heads of 256.
    const bool turns_tiles = !is_mixed && selection.is_everything() && params.head_dim <= 128;
    if (!turns_tiles || has_rows_to_convert(call.args, params)) {
      const KvScratch& scratch = kv_scratch(call.stream, kLeastKvScratchBytes);
      const CallPart part = choose_call_part(call.args, scratch.num_bytes());
      if (part.num_seqs > 0) return attend_converted(call, params, values, part, scratch);
    }
    if (is_mixed) {
      fail(ErrorCode::kUnsupported,
           "KV of {} becomes bf16 before prefill reads it, and the scratch of the stream does not "
           "hold a KV head of {} tokens; prepare it for the longest run",
           kv_block_element_name(call.args.kv.shape), max_run_tokens(call.args));
    }
    if (!turns_tiles) tile_tokens = 0;
  }
  if (tile_tokens > 0) {
    std::optional<KvBlocksView> columns;
    if (values.columns) columns = blocks_of_columns(call.args);
    launch_hopper(call, call.args.kv, params, selection, columns ? &*columns : nullptr);
    return;
  }
  launch_general(call, params, selection);
}

}  // namespace

void prefill_attention(CudaStream& stream, const AttentionArgs& args) {
  check_supported(args);
  SLUICE_CHECK(has_kv_tensor_map(args.kv), "blocks lie at {}, {} bytes apart; both must be 16-byte",
               static_cast<const void*>(args.kv.base), args.kv.stride_bytes);
  if (args.batch.max_rows == 0 || args.batch.first_pos.dim(0) == 0) return;
  const cudaDeviceProp& gpu = stream.cuda_device().properties();
  const PrefillParams params = make_params(args, gpu);
  CallSelection values = make_selection(args);
  stream.submit("attention", [&](cudaStream_t handle) {
    if (values.columns) {
      place_found_columns(*values.mask, attention_scratch(stream).data(), *values.columns);
      check_cuda(find_columns(handle, params, *values.mask, *values.columns),
                 "launch of prefill attention's columns");
    }
    attend({.stream = stream,
            .handle = handle,
            .args = args,
            .gpu = gpu,
            .tile_tokens = hopper_tile_tokens(args, gpu)},
           params, values);
  });
}

}  // namespace sluice::cuda
