// select_tiles on the CPU: masses from records, then the rule of ops/tile_rule.h.
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

namespace sluice::cpu {
namespace {

constexpr int32_t kTile = kMaskTileTokens;

// SelectTilesArgs as plain pointers, captured by value in the task.
struct SelectCall {
  const float* records;  // [num_q_heads][num_probes][num_kv_tiles]
  const int32_t* row_begin;
  const int32_t* first_pos;
  TileRule rule;
  int64_t prompt_end;
  uint32_t* bits;   // [num_list_heads][num_q_tiles][num_words]
  int64_t* counts;  // set, visible, cut
  int32_t per_tile;
  int32_t num_probes;
  int32_t num_kv_tiles;
  int32_t heads_per_list;
  int32_t num_list_heads;
  int32_t num_q_tiles;
  int32_t num_words;
  int32_t first_q_tile;  // of the mask
  int32_t first_entry;   // of the rows, in the mask
  int32_t num_entries;
};

SelectCall make_call(const SelectTilesArgs& args) {
  const TensorView& bits = args.mask.bits;
  return {.records = args.records.data<float>(),
          .row_begin = args.batch.row_begin.data<int32_t>(),
          .first_pos = args.batch.first_pos.data<int32_t>(),
          .rule = args.rule,
          .prompt_end = args.prompt_end,
          .bits = reinterpret_cast<uint32_t*>(bits.data<int32_t>()),
          .counts = args.counts.data<int64_t>(),
          .per_tile = args.probes_per_tile,
          .num_probes = static_cast<int32_t>(args.records.dim(1)),
          .num_kv_tiles = static_cast<int32_t>(args.records.dim(2)),
          .heads_per_list = static_cast<int32_t>(args.records.dim(0) / bits.dim(1)),
          .num_list_heads = static_cast<int32_t>(bits.dim(1)),
          .num_q_tiles = static_cast<int32_t>(bits.dim(2)),
          .num_words = static_cast<int32_t>(bits.dim(3)),
          .first_q_tile = args.mask.first_q_tile,
          .first_entry = args.rows.first / kTile,
          .num_entries = args.rows.num_q_tiles()};
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
bool add_shares(const float* records, std::vector<float>& shares) {
  const auto count = static_cast<int32_t>(shares.size());
  const float lse = log_sum_exp(records, count);
  if (!std::isfinite(lse)) return false;
  for (int32_t j = 0; j < count; ++j) {
    shares[static_cast<size_t>(j)] += fast_exp(records[j] - lse);
  }
  return true;
}

// Integer masses of the tiles that query tile `entry` of the rows sees, for the heads of a list;
// all 0 without a usable probe.
std::vector<uint32_t> masses_of(const SelectCall& call, int32_t list_head, int32_t entry) {
  const int32_t q_tile = call.first_q_tile + call.first_entry + entry;
  SLUICE_CHECK(q_tile < call.num_kv_tiles, "select_tiles: query tile {}, records of {} KV tiles",
               q_tile, call.num_kv_tiles);
  std::vector<float> shares(static_cast<size_t>(q_tile) + 1);
  int32_t num_usable = 0;
  for (int32_t h = 0; h < call.heads_per_list; ++h) {
    const int64_t head = static_cast<int64_t>(list_head) * call.heads_per_list + h;
    for (int32_t i = 0; i < call.per_tile; ++i) {
      const int64_t probe =
          head * call.num_probes + static_cast<int64_t>(entry) * call.per_tile + i;
      num_usable += add_shares(call.records + probe * call.num_kv_tiles, shares) ? 1 : 0;
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
          : take_tiles(call.rule, tile, masses_of(call, list_head, entry));
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

}  // namespace

void CpuOps::select_tiles(Stream& stream, const SelectTilesArgs& args) const {
  as_cpu(stream).submit("select tiles", [call = make_call(args)](ThreadTeam& team) {
    team.parallel_for(int64_t{call.num_list_heads} * call.num_entries, [&](int64_t index) {
      write_list(call, static_cast<int32_t>(index / call.num_entries),
                 static_cast<int32_t>(index % call.num_entries));
    });
  });
}

}  // namespace sluice::cpu
