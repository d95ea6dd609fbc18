// Embedding on the CPU: picks rows out of a packed weight.
//
// A row is strided in the packed layout (4 bytes of each 64-byte line), which reads a cache line
// per pair of channels: 32 KiB for a row of 1024, little compared with the layers' weights. Thread
// rule: enqueue only; rows run on the stream's team.
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/matmul/kernel.h"

namespace sluice::cpu {
namespace {

// Row `id` of a packed table: every 16th pair of its panel (matmul/kernel.h has the layout).
void copy_row(const PackedWeight& table, int64_t id, BFloat16* out) {
  const int64_t k = table.num_cols;
  const int64_t padded_k = (k + kPaddedKMultiple - 1) / kPaddedKMultiple * kPaddedKMultiple;
  const auto* panel =
      reinterpret_cast<const BFloat16*>(table.data) + id / kPanelRows * kPanelRows * padded_k;
  const BFloat16* src = panel + id % kPanelRows * 2;
  for (int64_t i = 0; i < k; ++i) out[i] = src[i / 2 * 2 * kPanelRows + i % 2];
}

}  // namespace

void CpuOps::embedding(Stream& stream, const EmbeddingArgs& args) const {
  expect_weight_format("embedding", args.table.format, WeightFormat::kBFloat16);
  const auto* ids = args.token_ids.data<int32_t>();
  auto* out = args.out.data<BFloat16>();
  as_cpu(stream).submit("embedding",
                        [=, table = args.table, m = args.token_ids.dim(0)](ThreadTeam& team) {
                          team.parallel_for(m, [&](int64_t row) {
                            const int64_t id = ids[row];
                            if (id < 0 || id >= table.num_rows) {
                              fail(ErrorCode::kInvalidArgument,
                                   "embedding: token_ids[{}] is {}, outside the table of {} tokens",
                                   row, id, table.num_rows);
                            }
                            copy_row(table, id, out + row * table.num_cols);
                          });
                        });
}

}  // namespace sluice::cpu
