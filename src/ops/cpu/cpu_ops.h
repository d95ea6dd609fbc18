// CpuOps: the CPU's kernels behind ops_of. Each op is defined where its kernels are, in ops/cpu/.
//
// Used by ops/ops.cc; tests and benches make one for an instruction set of their choice. Only bits
// of attention and of the matrix products depend on the set; on AMX attention rounds probabilities
// to bf16 for the product with V.
// Thread rule: stateless; ops enqueue only.
#pragma once

#include "device/cpu/cpu_features.h"
#include "ops/ops.h"

namespace sluice::cpu {

class CpuOps final : public Ops {
 public:
  // REQUIRES: the machine has `isa`.
  explicit CpuOps(CpuIsa isa) : isa_(isa) {}

  // 0 and nothing to prepare: scratch belongs to threads (ops/cpu/thread_scratch.h), and there are
  // no libraries to open.
  size_t memory_bytes() const override { return 0; }
  void prepare(Stream&) const override {}
  size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols,
                             WeightFormat format) const override;
  void pack_weight(Stream& stream, const PackWeightArgs& args) const override;
  void matmul(Stream& stream, const MatmulArgs& args) const override;
  void embedding(Stream& stream, const EmbeddingArgs& args) const override;
  void rms_norm(Stream& stream, const RmsNormArgs& args) const override;
  void rope_angles(Stream& stream, const RopeAnglesArgs& args) const override;
  void rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args) const override;
  void swiglu(Stream& stream, const SwigluArgs& args) const override;
  void gated_product(Stream& stream, const GatedProductArgs& args) const override;
  void gather_rows(Stream& stream, const GatherRowsArgs& args) const override;
  void attention(Stream& stream, const AttentionArgs& args) const override;
  void update_key_bounds(Stream& stream, const UpdateKeyBoundsArgs& args) const override;
  void score_pages(Stream& stream, const ScorePagesArgs& args) const override;
  void select_pages(Stream& stream, const SelectPagesArgs& args) const override;
  void replay_pages(Stream& stream, const ReplayPagesArgs& args) const override;
  void score_tiles(Stream& stream, const ScoreTilesArgs& args) const override;
  void select_tiles(Stream& stream, const SelectTilesArgs& args) const override;
  void add_tiles(Stream& stream, const AddTilesArgs& args) const override;
  void audit_mass(Stream& stream, const AuditMassArgs& args) const override;
  void tile_masses(Stream& stream, const TileMassesArgs& args) const override;
  void score_columns(Stream& stream, const ScoreColumnsArgs& args) const override;
  void select_columns(Stream& stream, const SelectColumnsArgs& args) const override;
  void gather_columns(Stream& stream, const GatherColumnsArgs& args) const override;
  void subtract_columns(Stream& stream, const SubtractColumnsArgs& args) const override;
  void score_line_rows(Stream& stream, const ScoreLineRowsArgs& args) const override;
  void score_lines(Stream& stream, const ScoreLinesArgs& args) const override;
  void select_diagonals(Stream& stream, const SelectDiagonalsArgs& args) const override;
  void choose_patterns(Stream& stream, const ChoosePatternsArgs& args) const override;
  void gather_pages(Stream& stream, const GatherPagesArgs& args) const override;
  void find_hot_pages(Stream& stream, const FindHotPagesArgs& args) const override;
  void fetch_hot_pages(Stream& stream, const FetchHotPagesArgs& args) const override;
  void forget_hot_pages(Stream& stream, const ForgetHotPagesArgs& args) const override;
  void copy_blocks(Stream& stream, const CopyBlocksArgs& args) const override;
  void sample(Stream& stream, const SampleArgs& args) const override;

 private:
  CpuIsa isa_;
};

}  // namespace sluice::cpu
