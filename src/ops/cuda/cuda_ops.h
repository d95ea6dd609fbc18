// CudaOps: the CUDA kernels behind ops_of. Each op is defined where its kernels are, in ops/cuda/.
//
// Used through cuda_ops() of cuda_ops_door.h; benches make one of their own. Shapes were checked
// before an op is called. Thread rule: stateless; scratch and libraries belong to the stream
// (op_state.h).
#pragma once

#include "ops/ops.h"

namespace sluice::cuda {

class CudaOps final : public Ops {
 public:
  size_t memory_bytes() const override;
  void prepare(Stream& stream) const override;
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
};

}  // namespace sluice::cuda
