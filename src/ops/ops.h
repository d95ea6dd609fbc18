// Ops: the table of kernels that a backend must provide.
//
// Callers use the free functions of sample.h and of the headers in attention/, matmul/, pages/,
// rows/ and tiles/: they check the shapes once (the .cc file beside each) and then come here. A
// backend that lacks an op does not compile.
//
// These rules hold for every op and are not repeated there:
//   - a call enqueues on its stream and returns; it never waits;
//   - inputs must be ready in stream order, and all memory of the arguments must live until the
//     stream has executed the op;
//   - a wrong shape or type is a mistake in Sluice: the call aborts and names the symbol
//     (ops/shape_contract.h).
// Each op's comment has the slots Shapes, Types, Aliasing, Order and Errors, and Source where the
// arithmetic is published; tools/check_layers.py holds it to that. Thread rule: stateless.
#pragma once

#include "ops/attention/attention.h"
#include "ops/matmul/matmul.h"
#include "ops/pages/copy_blocks.h"
#include "ops/pages/gather_pages.h"
#include "ops/pages/hot_pages.h"
#include "ops/pages/page_selection.h"
#include "ops/rows/activation.h"
#include "ops/rows/norm.h"
#include "ops/rows/rope.h"
#include "ops/sample.h"
#include "ops/tiles/audit_mass.h"
#include "ops/tiles/head_patterns.h"
#include "ops/tiles/tile_columns.h"
#include "ops/tiles/tile_lines.h"
#include "ops/tiles/tile_selection.h"

namespace sluice {

// One pure virtual per op, with the contract of the free function of that name. Arguments have
// passed that function's shape contract; implementations do not check shapes again.
class Ops {
 public:
  virtual ~Ops() = default;

  // See prepare_ops and op_memory_bytes below.
  virtual size_t memory_bytes() const = 0;
  virtual void prepare(Stream& stream) const = 0;

  virtual size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols,
                                     WeightFormat format) const = 0;
  virtual void pack_weight(Stream& stream, const PackWeightArgs& args) const = 0;
  virtual void matmul(Stream& stream, const MatmulArgs& args) const = 0;
  virtual void embedding(Stream& stream, const EmbeddingArgs& args) const = 0;
  virtual void rms_norm(Stream& stream, const RmsNormArgs& args) const = 0;
  virtual void rope_angles(Stream& stream, const RopeAnglesArgs& args) const = 0;
  virtual void rope_and_write_kv(Stream& stream, const RopeAndWriteKvArgs& args) const = 0;
  virtual void swiglu(Stream& stream, const SwigluArgs& args) const = 0;
  virtual void gated_product(Stream& stream, const GatedProductArgs& args) const = 0;
  virtual void gather_rows(Stream& stream, const GatherRowsArgs& args) const = 0;
  virtual void attention(Stream& stream, const AttentionArgs& args) const = 0;
  virtual void update_key_bounds(Stream& stream, const UpdateKeyBoundsArgs& args) const = 0;
  virtual void score_pages(Stream& stream, const ScorePagesArgs& args) const = 0;
  virtual void select_pages(Stream& stream, const SelectPagesArgs& args) const = 0;
  virtual void replay_pages(Stream& stream, const ReplayPagesArgs& args) const = 0;
  virtual void score_tiles(Stream& stream, const ScoreTilesArgs& args) const = 0;
  virtual void select_tiles(Stream& stream, const SelectTilesArgs& args) const = 0;
  virtual void add_tiles(Stream& stream, const AddTilesArgs& args) const = 0;
  virtual void audit_mass(Stream& stream, const AuditMassArgs& args) const = 0;
  virtual void tile_masses(Stream& stream, const TileMassesArgs& args) const = 0;
  virtual void score_columns(Stream& stream, const ScoreColumnsArgs& args) const = 0;
  virtual void select_columns(Stream& stream, const SelectColumnsArgs& args) const = 0;
  virtual void gather_columns(Stream& stream, const GatherColumnsArgs& args) const = 0;
  virtual void subtract_columns(Stream& stream, const SubtractColumnsArgs& args) const = 0;
  virtual void score_line_rows(Stream& stream, const ScoreLineRowsArgs& args) const = 0;
  virtual void score_lines(Stream& stream, const ScoreLinesArgs& args) const = 0;
  virtual void select_diagonals(Stream& stream, const SelectDiagonalsArgs& args) const = 0;
  virtual void choose_patterns(Stream& stream, const ChoosePatternsArgs& args) const = 0;
  virtual void gather_pages(Stream& stream, const GatherPagesArgs& args) const = 0;
  virtual void find_hot_pages(Stream& stream, const FindHotPagesArgs& args) const = 0;
  virtual void fetch_hot_pages(Stream& stream, const FetchHotPagesArgs& args) const = 0;
  virtual void forget_hot_pages(Stream& stream, const ForgetHotPagesArgs& args) const = 0;
  virtual void copy_blocks(Stream& stream, const CopyBlocksArgs& args) const = 0;
  virtual void sample(Stream& stream, const SampleArgs& args) const = 0;
};

// The kernels of the backend that `device` belongs to.
const Ops& ops_of(const Device& device);

// Device memory that ops keep for one stream: scratch and workspaces of products and attention.
size_t op_memory_bytes(const Device& device);

// Allocates that memory and opens the libraries of the ops now instead of in the first calls. The
// memory plan counts it, a graph capture finds it allocated, and a missing library shows at start.
// Order: errors are thrown at the next host wait for the stream.
void prepare_ops(Stream& stream);

}  // namespace sluice
