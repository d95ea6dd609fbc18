// tile_masses and select_tiles on the CPU: masses from records, then the rule of
// ops/tiles/tile_rule.h.
//
// Lists do not depend on each other. Thread rule: enqueue only; lists run on the stream's team.
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/tiles/masks.h"
#include "ops/cpu/tiles/masses.h"

namespace sluice::cpu {
namespace {

RecordsCall records_of(const TensorView& records, int32_t per_tile, int64_t num_list_heads,
                       int32_t first_q_tile) {
  return {.records = records.data<float>(),
          .per_tile = per_tile,
          .num_probes = static_cast<int32_t>(records.dim(1)),
          .num_kv_tiles = static_cast<int32_t>(records.dim(2)),
          .heads_per_list = static_cast<int32_t>(records.dim(0) / num_list_heads),
          .first_q_tile = first_q_tile};
}

// SelectTilesArgs as plain pointers, captured by value in the task.
struct SelectCall {
  MaskCall mask;
  TileRule rule;
  RecordsCall records;         // where there are no masses
  const int32_t* masses;       // [num_list_heads][num_entries][num_kv_tiles]; null: from records
  const int32_t* column_mass;  // [num_list_heads][num_entries]
  int32_t num_mass_tiles;      // num_kv_tiles of masses
};

SelectCall make_call(const SelectTilesArgs& args) {
  SelectCall call{.mask = make_mask_call(args), .rule = args.rule};
  if (args.masses.present()) {
    call.masses = args.masses.masses.data<int32_t>();
    call.column_mass = args.masses.column_mass.data<int32_t>();
    call.num_mass_tiles = static_cast<int32_t>(args.masses.masses.dim(2));
  } else {
    call.records = records_of(args.records, args.probes_per_tile, args.mask.bits.dim(1),
                              call.mask.first_q_tile_of_rows());
  }
  if (args.patterns.present()) {
    call.records.heads = {.patterns = args.patterns.data<int32_t>(),
                          .num_segments = static_cast<int32_t>(args.patterns.dim(1)),
                          .tiles_per_segment = args.segment_tokens / kMaskTileTokens};
  }
  return call;
}

// KV tiles that query tile `entry` of the rows sees.
int32_t num_seen(const RecordsCall& call, int32_t entry) {
  const int32_t q_tile = call.first_q_tile + entry;
  SLUICE_CHECK(q_tile < call.num_kv_tiles, "select_tiles: query tile {}, records of {} KV tiles",
               q_tile, call.num_kv_tiles);
  return q_tile + 1;
}

// What the rule takes, of the masses that the call has, or makes of records.
TileSelection take(const SelectCall& call, const QueryTile& tile, int32_t list_head,
                   int32_t entry) {
  if (attends_everything(call.rule, tile)) {
    return {.is_set = std::vector<bool>(static_cast<size_t>(tile.q_tile) + 1, true)};
  }
  if (call.masses == nullptr) {
    return take_tiles(call.rule, tile,
                      masses_of(call.records, list_head, entry, num_seen(call.records, entry),
                                [](int64_t, float) {}));
  }
  const int64_t list = static_cast<int64_t>(list_head) * call.mask.num_entries + entry;
  const int32_t* masses = call.masses + list * call.num_mass_tiles;
  return take_tiles(call.rule, tile, std::vector<uint32_t>(masses, masses + tile.q_tile + 1),
                    static_cast<uint64_t>(call.column_mass[list]));
}

// Writes the entry of a list, or adds to it where heads have patterns.
void select_entry(const SelectCall& call, int32_t list_head, int32_t entry) {
  const auto choose = [&](const QueryTile& tile) { return take(call, tile, list_head, entry); };
  if (call.records.heads.patterns == nullptr) {
    return write_mask_entry(call.mask, list_head, entry, choose);
  }
  const int64_t first = static_cast<int64_t>(list_head) * call.records.heads_per_list;
  for (int64_t head = first; head < first + call.records.heads_per_list; ++head) {
    if (call.records.heads.counts(head, entry)) {
      return add_to_mask_entry(call.mask, list_head, entry, choose);
    }
  }
}

// TileMassesArgs as plain pointers.
struct MassesCall {
  RecordsCall records;
  const int32_t* row_begin;
  const int32_t* first_pos;
  float* lse;            // [num_q_heads][num_probes]
  int32_t* masses;       // [num_list_heads][num_entries][num_kv_tiles]
  int32_t* column_mass;  // [num_list_heads][num_entries]
  int32_t num_list_heads;
  int32_t num_entries;
};

void write_masses(const MassesCall& call, int32_t list_head, int32_t entry) {
  const int64_t list = static_cast<int64_t>(list_head) * call.num_entries + entry;
  const int32_t num_kv_tiles = call.records.num_kv_tiles;
  int32_t* to = call.masses + list * num_kv_tiles;
  std::fill_n(to, num_kv_tiles, 0);
  call.column_mass[list] = 0;
  const int32_t end_pos = *call.first_pos + call.row_begin[1] - call.row_begin[0];
  if ((call.records.first_q_tile + entry) * kMaskTileTokens >= end_pos) return;
  const std::vector<uint32_t> masses =
      masses_of(call.records, list_head, entry, num_seen(call.records, entry),
                [&](int64_t probe, float lse) { call.lse[probe] = lse; });
  std::copy(masses.begin(), masses.end(), to);
}

}  // namespace

void CpuOps::tile_masses(Stream& stream, const TileMassesArgs& args) const {
  const TensorView& masses = args.out.masses;
  const MassesCall call{
      .records = records_of(args.records, args.probes_per_tile, masses.dim(0),
                            args.first_q_tile + args.rows.first / kMaskTileTokens),
      .row_begin = args.batch.row_begin.data<int32_t>(),
      .first_pos = args.batch.first_pos.data<int32_t>(),
      .lse = args.out.lse.data<float>(),
      .masses = masses.data<int32_t>(),
      .column_mass = args.out.column_mass.data<int32_t>(),
      .num_list_heads = static_cast<int32_t>(masses.dim(0)),
      .num_entries = args.rows.num_q_tiles()};
  as_cpu(stream).submit("tile masses", [call](ThreadTeam& team) {
    team.parallel_for(int64_t{call.num_list_heads} * call.num_entries, [&](int64_t index) {
      write_masses(call, static_cast<int32_t>(index / call.num_entries),
                   static_cast<int32_t>(index % call.num_entries));
    });
  });
}

void CpuOps::select_tiles(Stream& stream, const SelectTilesArgs& args) const {
  as_cpu(stream).submit("select tiles", [call = make_call(args)](ThreadTeam& team) {
    const int32_t num_entries = call.mask.num_entries;
    team.parallel_for(int64_t{call.mask.num_list_heads} * num_entries, [&](int64_t index) {
      select_entry(call, static_cast<int32_t>(index / num_entries),
                   static_cast<int32_t>(index % num_entries));
    });
  });
}

}  // namespace sluice::cpu
