// score_tiles and score_line_rows on CUDA: refuses calls that no kernel supports, and launches
// probe vectors and scores.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/cuda/attention/scratch.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/tiles/key_run.h"
#include "ops/cuda/tiles/score_call.h"

namespace sluice::cuda {
namespace {

constexpr int32_t kTile = kMaskTileTokens;

int32_t divide_up(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

void set_visits(const ScoreTilesArgs& args, ScoreCall& call) {
  if (!args.visits.present()) return;
  const TensorView& bits = args.visits.bits;
  call.num_words = static_cast<int32_t>(bits.dim(3));
  call.visits = reinterpret_cast<const uint32_t*>(bits.data<int32_t>()) +
                int64_t{args.rows.first / kTile} * call.num_words;
  call.visit_list_words = bits.dim(1) == 1 ? 0 : bits.dim(2) * bits.dim(3);
}

// Without the fields of set_blocks.
ScoreCall make_call(const ScoreTilesArgs& args) {
  const auto num_q_heads = static_cast<int32_t>(args.q.dim(1));
  const auto num_kv_tiles = static_cast<int32_t>(args.records.dim(2));
  const KvBlockShape& kv = args.kv.shape;
  const bool is_pooled = args.probes.kind == TileProbeKind::kPooled;
  const bool has_cells = args.probes.kind == TileProbeKind::kAntidiagonal;
  return {.q = reinterpret_cast<const uint16_t*>(args.q.bytes()),
          .vectors = reinterpret_cast<uint16_t*>(args.vectors.bytes()),
          .records = args.records.data<float>(),
          .row_begin = args.batch.row_begin.data<int32_t>(),
          .first_pos = args.batch.first_pos.data<int32_t>(),
          .kv_begin = args.kv_begin.data<int32_t>(),
          .kv_end = args.kv_end.data<int32_t>(),
          .probes = args.probes,
          .first_row = args.rows.first,
          .num_q_heads = num_q_heads,
          .num_kv_heads = kv.num_kv_heads,
          .group = num_q_heads / kv.num_kv_heads,
          .head_dim = kv.head_dim,
          .block_tokens = kv.block_tokens,
          .num_probes = static_cast<int32_t>(args.records.dim(1)),
          .per_tile = probes_per_tile(args.probes),
          .width = static_cast<int32_t>(args.vectors.dim(2)),
          .num_kv_tiles = num_kv_tiles,
          .num_run_tiles =
              std::min(num_kv_tiles, divide_up(args.block_table.dim(1) * kv.block_tokens, kTile)),
          .scale = has_cells ? args.scale / static_cast<float>(args.probes.stride) : args.scale,
          .pool_log = is_pooled ? std::log(static_cast<float>(args.probes.key_pool_tokens)) : 0.0f};
}

// Blocks that share the rows of a group of keys: enough that every multiprocessor has some, each
// with as many rows as there can be.
int32_t choose_splits(const ScoreCall& call, const ScoreShape& shape, int num_processors) {
  constexpr int64_t kBlocksPerProcessor = 8;
  const int32_t most = divide_up(int64_t{call.num_probes} * call.group, shape.rows_at_once);
  if (shape.max_turns > 0) return divide_up(most, shape.max_turns);
  const int64_t num_groups =
      int64_t{divide_up(call.num_run_tiles, shape.tiles_at_once)} * call.num_kv_heads;
  // A block lists the query tiles that visit its keys.
  const int32_t num_q_tiles = call.num_probes / call.per_tile;
  const int32_t least = call.visits == nullptr ? 1 : divide_up(num_q_tiles, kMaxVisitors);
  return std::max(least,
                  std::clamp(divide_up(kBlocksPerProcessor * num_processors, num_groups), 1, most));
}

ScoreKernel choose_kernel(const ScoreCall& call, const cudaDeviceProp& gpu) {
  const bool has_cells = call.probes.kind == TileProbeKind::kAntidiagonal;
  if (gpu.major == 9 && gpu.minor == 0) {
    const ScoreKernel hopper =
        has_cells ? score_hopper_cells_kernel() : score_hopper_probes_kernel();
    if (hopper.fits(call)) return hopper;
    const ScoreKernel rows = score_hopper_rows_kernel();
    if (!has_cells && rows.fits(call)) return rows;
  }
  return has_cells ? score_cells_kernel() : score_rows_kernel();
}

// Throws kUnsupported, as the op promises.
void check_supported(const char* op, const CudaStream& stream, const ScoreCall& call,
                     const ScoreShape& shape) {
  // The kernels take the maximum before scaling, which a scale of 0 or less would invert.
  if (!(call.scale > 0.0f)) {
    fail(ErrorCode::kUnsupported, "{} on CUDA needs a scale above 0, not {}", op, call.scale);
  }
  const size_t most_bytes = stream.cuda_device().properties().sharedMemPerBlockOptin;
  if (shape.shared_bytes > most_bytes) {
    fail(ErrorCode::kUnsupported,
         "{} on {}: keys of {} elements take {} bytes of shared memory, it has {}; use the "
         "device 'cpu'",
         op, stream.device().info().name, call.width, shape.shared_bytes, most_bytes);
  }
}

// Where the keys lie. REQUIRES: `run` is what convert_key_run left, `keys` what it returned.
void set_blocks(const KeyRunCall& run, const KvBlocksView& keys, ScoreCall& call) {
  call.block_table = run.block_table;
  call.kv_base = run.kv_base;
  call.kv_stride_bytes = run.kv_stride_bytes;
  call.num_blocks = keys.num_blocks;
  call.lines_per_head = run.lines_per_head;
  call.head_elements = run.head_elements;
}

void run_call(const char* op, CudaStream& stream, const KvBlocksView& kv, KeyRunCall run,
              ScoreCall call) {
  const cudaDeviceProp& gpu = stream.cuda_device().properties();
  call.scratch_bytes = AttentionScratch::data_bytes();
  call.num_processors = gpu.multiProcessorCount;
  const ScoreKernel kernel = choose_kernel(call, gpu);
  const ScoreShape shape = kernel.shape(call);
  check_key_run(op, stream, kv);
  check_supported(op, stream, call, shape);
  if (call.num_run_tiles == 0 || call.num_probes == 0) return;
  call.num_splits = choose_splits(call, shape, gpu.multiProcessorCount);
  stream.submit(op, [&](cudaStream_t handle) {
    call.report = stream.report(op,
                                "KV tile {} lies beyond the records; make records of all KV tiles "
                                "up to kv_end");
    call.scratch = attention_scratch(stream).data();
    const KvBlocksView keys = convert_key_run(stream, handle, kv, run);
    set_blocks(run, keys, call);
    check_cuda(launch_probe_vectors(handle, call), "launch of probe vectors");
    check_cuda(kernel.launch(handle, call), "launch of tile scores");
  });
}

}  // namespace

void CudaOps::score_line_rows(Stream& stream, const ScoreLineRowsArgs& args) const {
  ScoreCall call = make_call(tile_args_of(args));
  call.per_tile = args.is_pooled ? 1 : args.lines.count;
  call.line_rows = args.lines.count;
  call.segment_tokens = args.lines.segment_tokens;
  run_call("score_line_rows", as_cuda(stream), args.kv, key_run_of(args), call);
}

void CudaOps::score_tiles(Stream& stream, const ScoreTilesArgs& args) const {
  ScoreCall call = make_call(args);
  set_visits(args, call);
  run_call("score_tiles", as_cuda(stream), args.kv, key_run_of(args), call);
}

}  // namespace sluice::cuda
