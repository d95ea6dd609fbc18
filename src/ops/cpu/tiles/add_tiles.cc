// add_tiles on the CPU: a task for each entry of the mask. Thread rule: enqueue only; entries run
// on the stream's team.
#include <atomic>
#include <bit>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"

namespace sluice::cpu {
namespace {

// AddTilesArgs as plain pointers.
struct AddTilesCall {
  const int32_t* lists;   // [num_list_heads][3]
  const uint32_t* other;  // as bits; null: none
  const int32_t* row_begin;
  const int32_t* first_pos;
  uint32_t* bits;   // [num_list_heads][num_q_tiles][num_words]
  int64_t* counts;  // set, visible, cut
  int32_t num_q_tiles;
  int32_t num_words;
  int32_t first_q_tile;  // of the mask
  int32_t first_entry;   // of the rows, in the mask
};

void add_to_entry(const AddTilesCall& call, int32_t list, int32_t entry) {
  const int32_t mask_entry = call.first_entry + entry;
  const int32_t q_tile = call.first_q_tile + mask_entry;
  const int32_t end_pos = *call.first_pos + call.row_begin[1] - call.row_begin[0];
  if (int64_t{q_tile} * kMaskTileTokens >= end_pos) return;
  const int32_t* own = call.lists + list * 3;
  const int64_t first_word = (int64_t{list} * call.num_q_tiles + mask_entry) * call.num_words;
  int64_t num_new = 0;
  for (int32_t word = 0; word * 32 <= q_tile; ++word) {
    uint32_t added = 0, seen = 0;
    for (int32_t bit = 0; bit < 32 && word * 32 + bit <= q_tile; ++bit) {
      seen |= 1u << bit;
      if (is_added(own[0], own[1], q_tile, word * 32 + bit)) added |= 1u << bit;
    }
    if (call.other != nullptr && own[2] != 0) added |= call.other[first_word + word] & seen;
    uint32_t& bits = call.bits[first_word + word];
    num_new += std::popcount(added & ~bits);
    bits |= added;
  }
  std::atomic_ref(call.counts[0]).fetch_add(num_new, std::memory_order_relaxed);
}

}  // namespace

void CpuOps::add_tiles(Stream& stream, const AddTilesArgs& args) const {
  const TensorView& bits = args.mask.bits;
  const AddTilesCall call{.lists = args.lists.data<int32_t>(),
                          .other = reinterpret_cast<const uint32_t*>(args.other.bits.bytes()),
                          .row_begin = args.batch.row_begin.data<int32_t>(),
                          .first_pos = args.batch.first_pos.data<int32_t>(),
                          .bits = reinterpret_cast<uint32_t*>(bits.data<int32_t>()),
                          .counts = args.counts.data<int64_t>(),
                          .num_q_tiles = static_cast<int32_t>(bits.dim(2)),
                          .num_words = static_cast<int32_t>(bits.dim(3)),
                          .first_q_tile = args.mask.first_q_tile,
                          .first_entry = args.rows.first / kMaskTileTokens};
  const int64_t num_lists = bits.dim(1);
  const int64_t num_entries = args.rows.num_q_tiles();
  as_cpu(stream).submit("add tiles", [call, num_lists, num_entries](ThreadTeam& team) {
    team.parallel_for(num_lists * num_entries, [&](int64_t index) {
      add_to_entry(call, static_cast<int32_t>(index / num_entries),
                   static_cast<int32_t>(index % num_entries));
    });
  });
}

}  // namespace sluice::cpu
