// choose_patterns on the CPU. Thread rule: enqueue only; heads and segments run on the stream's
// team.
#include "ops/tiles/head_patterns.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/tiles/masses.h"

namespace sluice::cpu {
namespace {

// ChoosePatternsArgs as plain pointers, captured by value in the task.
struct PatternsCall {
  RecordsCall records;  // a list for each query head, an entry for each segment
  RecordsCall pooled;
  const int32_t* row_begin;
  const int32_t* first_pos;
  int64_t limit;      // of the sum of terms
  int32_t* patterns;  // [num_q_heads][num_segments]
  int32_t num_q_heads;
  int32_t num_segments;

  int32_t num_tiles() const {
    return (*first_pos + row_begin[1] - row_begin[0] + kMaskTileTokens - 1) / kMaskTileTokens;
  }
};

RecordsCall records_of(const TensorView& records, int32_t per_segment) {
  return {.records = records.data<float>(),
          .per_tile = per_segment,
          .num_probes = static_cast<int32_t>(records.dim(1)),
          .num_kv_tiles = static_cast<int32_t>(records.dim(2)),
          .heads_per_list = 1,
          .first_q_tile = 0,
          .heads = {}};
}

HeadPattern pattern_of(const PatternsCall& call, int32_t head, int32_t segment) {
  const auto masses = [&](const RecordsCall& records) {
    return masses_of(records, head, segment, call.num_tiles(), [](int64_t, float) {});
  };
  const std::vector<uint32_t> true_masses = masses(call.records);
  const std::vector<uint32_t> pooled = masses(call.pooled);
  int64_t divergence = 0;
  for (size_t j = 0; j < pooled.size(); ++j) {
    divergence += divergence_term(true_masses[j], pooled[j]);
  }
  const auto is_usable = [](const std::vector<uint32_t>& of) {
    return std::any_of(of.begin(), of.end(), [](uint32_t mass) { return mass > 0; });
  };
  const bool is_near = divergence < call.limit && is_usable(true_masses) && is_usable(pooled);
  return is_near ? HeadPattern::kTiles : HeadPattern::kLines;
}

}  // namespace

void CpuOps::choose_patterns(Stream& stream, const ChoosePatternsArgs& args) const {
  const PatternsCall call{.records = records_of(args.records, args.lines.count),
                          .pooled = records_of(args.pooled, 1),
                          .row_begin = args.batch.row_begin.data<int32_t>(),
                          .first_pos = args.batch.first_pos.data<int32_t>(),
                          .limit = divergence_limit(args.divergence),
                          .patterns = args.patterns.data<int32_t>(),
                          .num_q_heads = static_cast<int32_t>(args.patterns.dim(0)),
                          .num_segments = static_cast<int32_t>(args.patterns.dim(1))};
  as_cpu(stream).submit("choose patterns", [call](ThreadTeam& team) {
    SLUICE_CHECK(call.num_tiles() <= call.records.num_kv_tiles,
                 "choose_patterns: {} KV tiles, records have room for {}", call.num_tiles(),
                 call.records.num_kv_tiles);
    team.parallel_for(int64_t{call.num_q_heads} * call.num_segments, [&](int64_t index) {
      const HeadPattern pattern = pattern_of(call, static_cast<int32_t>(index / call.num_segments),
                                             static_cast<int32_t>(index % call.num_segments));
      call.patterns[index] = static_cast<int32_t>(pattern);
    });
  });
}

}  // namespace sluice::cpu
