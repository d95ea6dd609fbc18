// tile_masses and select_tiles on the CPU: masses from records, then the rule of ops/tile_rule.h.
//
// Lists do not depend on each other. Thread rule: enqueue only; lists run on the stream's team.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/tiles/key_tile.h"
#include "ops/cpu/tiles/masks.h"

namespace sluice::cpu {
namespace {

constexpr int32_t kTile = kMaskTileTokens;

// Records of some query tiles as plain pointers, and the heads that share a list.
struct RecordsCall {
  const float* records;  // [num_q_heads][num_probes][num_kv_tiles]
  int32_t per_tile;
  int32_t num_probes;
  int32_t num_kv_tiles;
  int32_t heads_per_list;
  int32_t first_q_tile;  // of the rows
};

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
  return call;
}

// Adds the probe's share of every tile to `shares`; false if it is not usable.
bool add_shares(const float* records, float lse, std::vector<float>& shares) {
  const auto count = static_cast<int32_t>(shares.size());
  if (!std::isfinite(lse)) return false;
  for (int32_t j = 0; j < count; ++j) {
    shares[static_cast<size_t>(j)] += fast_exp(records[j] - lse);
  }
  return true;
}

// Integer masses of the tiles that query tile `entry` of the rows sees, for the heads of a list;
// all 0 without a usable probe. Gives each probe's log-sum-exp to on_lse(probe, lse).
template <typename F>
std::vector<uint32_t> masses_of(const RecordsCall& call, int32_t list_head, int32_t entry,
                                const F& on_lse) {
  const int32_t q_tile = call.first_q_tile + entry;
  SLUICE_CHECK(q_tile < call.num_kv_tiles, "select_tiles: query tile {}, records of {} KV tiles",
               q_tile, call.num_kv_tiles);
  std::vector<float> shares(static_cast<size_t>(q_tile) + 1);
  int32_t num_usable = 0;
  for (int32_t h = 0; h < call.heads_per_list; ++h) {
    const int64_t head = static_cast<int64_t>(list_head) * call.heads_per_list + h;
    for (int32_t i = 0; i < call.per_tile; ++i) {
      const int64_t probe =
          head * call.num_probes + static_cast<int64_t>(entry) * call.per_tile + i;
      const float* records = call.records + probe * call.num_kv_tiles;
      const float lse = log_sum_exp(records, q_tile + 1);
      on_lse(probe, lse);
      num_usable += add_shares(records, lse, shares) ? 1 : 0;
    }
  }
  std::vector<uint32_t> masses;
  for (const float share : shares) {
    masses.push_back(num_usable > 0 ? to_mass(share / static_cast<float>(num_usable)) : 0);
  }
  return masses;
}

// What the rule takes, of the masses that the call has, or makes of records.
TileSelection take(const SelectCall& call, const QueryTile& tile, int32_t list_head,
                   int32_t entry) {
  if (attends_everything(call.rule, tile)) {
    return {.is_set = std::vector<bool>(static_cast<size_t>(tile.q_tile) + 1, true)};
  }
  if (call.masses == nullptr) {
    return take_tiles(call.rule, tile,
                      masses_of(call.records, list_head, entry, [](int64_t, float) {}));
  }
  const int64_t list = static_cast<int64_t>(list_head) * call.mask.num_entries + entry;
  const int32_t* masses = call.masses + list * call.num_mass_tiles;
  return take_tiles(call.rule, tile, std::vector<uint32_t>(masses, masses + tile.q_tile + 1),
                    static_cast<uint64_t>(call.column_mass[list]));
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
  if ((call.records.first_q_tile + entry) * kTile >= end_pos) return;
  const std::vector<uint32_t> masses = masses_of(
      call.records, list_head, entry, [&](int64_t probe, float lse) { call.lse[probe] = lse; });
  std::copy(masses.begin(), masses.end(), to);
}

}  // namespace

void CpuOps::tile_masses(Stream& stream, const TileMassesArgs& args) const {
  const TensorView& masses = args.out.masses;
  const MassesCall call{.records = records_of(args.records, args.probes_per_tile, masses.dim(0),
                                              args.first_q_tile + args.rows.first / kTile),
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
      const auto list_head = static_cast<int32_t>(index / num_entries);
      const auto entry = static_cast<int32_t>(index % num_entries);
      write_mask_entry(call.mask, list_head, entry,
                       [&](const QueryTile& tile) { return take(call, tile, list_head, entry); });
    });
  });
}

}  // namespace sluice::cpu
