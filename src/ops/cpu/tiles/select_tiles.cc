// tile_masses and select_tiles on the CPU: masses from records, then the rule of ops/tile_rule.h.
//
// Lists do not depend on each other. Thread rule: enqueue only; lists run on the stream's team.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scalar_math.h"
#include "ops/cpu/tiles/key_tile.h"

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
  RecordsCall records;         // where there are no masses
  const int32_t* masses;       // [num_list_heads][num_entries][num_kv_tiles]; null: from records
  const int32_t* column_mass;  // [num_list_heads][num_entries]
  const int32_t* row_begin;
  const int32_t* first_pos;
  TileRule rule;
  int64_t prompt_end;
  uint32_t* bits;          // [num_list_heads][num_q_tiles][num_words]
  int64_t* counts;         // set, visible, cut
  int32_t num_mass_tiles;  // num_kv_tiles of masses
  int32_t num_list_heads;
  int32_t num_q_tiles;
  int32_t num_words;
  int32_t first_q_tile;  // of the mask
  int32_t first_entry;   // of the rows, in the mask
  int32_t num_entries;
};

void set_masses(const TileMasses& masses, SelectCall& call) {
  call.masses = masses.masses.data<int32_t>();
  call.column_mass = masses.column_mass.data<int32_t>();
  call.num_mass_tiles = static_cast<int32_t>(masses.masses.dim(2));
}

SelectCall make_call(const SelectTilesArgs& args) {
  const TensorView& bits = args.mask.bits;
  const int32_t first_entry = args.rows.first / kTile;
  SelectCall call{.row_begin = args.batch.row_begin.data<int32_t>(),
                  .first_pos = args.batch.first_pos.data<int32_t>(),
                  .rule = args.rule,
                  .prompt_end = args.prompt_end,
                  .bits = reinterpret_cast<uint32_t*>(bits.data<int32_t>()),
                  .counts = args.counts.data<int64_t>(),
                  .num_list_heads = static_cast<int32_t>(bits.dim(1)),
                  .num_q_tiles = static_cast<int32_t>(bits.dim(2)),
                  .num_words = static_cast<int32_t>(bits.dim(3)),
                  .first_q_tile = args.mask.first_q_tile,
                  .first_entry = first_entry,
                  .num_entries = args.rows.num_q_tiles()};
  if (args.masses.present()) {
    set_masses(args.masses, call);
  } else {
    call.records = records_of(args.records, args.probes_per_tile, bits.dim(1),
                              args.mask.first_q_tile + first_entry);
  }
  return call;
}

// The log-sum-exp of a probe's records; not finite where the probe is not usable: NaN and infinity
// make the sum NaN.
float log_sum_exp(const float* records, int32_t count) {
  const float largest = *std::max_element(records, records + count);
  float lanes[kRecordLanes] = {};
  int32_t j = 0;
  for (; j + kRecordLanes <= count; j += kRecordLanes) {
    for (int32_t l = 0; l < kRecordLanes; ++l) lanes[l] += fast_exp(records[j + l] - largest);
  }
  for (; j < count; ++j) lanes[j % kRecordLanes] += fast_exp(records[j] - largest);
  return largest + fast_log(sum_lanes(lanes));
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

void add_count(int64_t& count, int64_t value) {
  std::atomic_ref<int64_t>(count).fetch_add(value, std::memory_order_relaxed);
}

// What the rule takes of the masses that the call has, or makes of records.
TileSelection take(const SelectCall& call, const QueryTile& tile, int32_t list_head,
                   int32_t entry) {
  if (call.masses == nullptr) {
    return take_tiles(call.rule, tile,
                      masses_of(call.records, list_head, entry, [](int64_t, float) {}));
  }
  const int64_t list = static_cast<int64_t>(list_head) * call.num_entries + entry;
  const int32_t* masses = call.masses + list * call.num_mass_tiles;
  return take_tiles(call.rule, tile, std::vector<uint32_t>(masses, masses + tile.q_tile + 1),
                    static_cast<uint64_t>(call.column_mass[list]));
}

void write_list(const SelectCall& call, int32_t list_head, int32_t entry) {
  const int32_t mask_entry = call.first_entry + entry;
  uint32_t* words = call.bits + (static_cast<int64_t>(list_head) * call.num_q_tiles + mask_entry) *
                                    call.num_words;
  std::fill_n(words, call.num_words, 0u);
  const QueryTile tile{.q_tile = call.first_q_tile + mask_entry, .prompt_end = call.prompt_end};
  if (tile.q_tile * kTile >= *call.first_pos + call.row_begin[1] - call.row_begin[0]) return;
  const auto num_visible = static_cast<size_t>(tile.q_tile) + 1;
  const TileSelection selection =
      attends_everything(call.rule, tile)
          ? TileSelection{.is_set = std::vector<bool>(num_visible, true)}
          : take(call, tile, list_head, entry);
  int64_t num_set = 0;
  for (size_t j = 0; j < num_visible; ++j) {
    if (!selection.is_set[j]) continue;
    words[j / 32] |= 1u << (j % 32);
    ++num_set;
  }
  add_count(call.counts[0], num_set);
  add_count(call.counts[1], static_cast<int64_t>(num_visible));
  add_count(call.counts[2], selection.num_cut);
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
    team.parallel_for(int64_t{call.num_list_heads} * call.num_entries, [&](int64_t index) {
      write_list(call, static_cast<int32_t>(index / call.num_entries),
                 static_cast<int32_t>(index % call.num_entries));
    });
  });
}

}  // namespace sluice::cpu
