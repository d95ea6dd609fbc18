// Ops: the table of kernels that a backend must provide.
//
// Callers use the free functions of sample.h and of the headers in attention/, delta/, experts/,
// matmul/, pages/, rows/ and tiles/: they check the shapes once (the .cc file beside each) and then
// come here. The table and those of the backends are declared from one list (op_list.h), so a
// backend that lacks an op does not link.
//
// These rules hold for every op and are not repeated there:
//   - a call enqueues on its stream and returns; it never waits;
//   - inputs must be ready in stream order, and all memory of the arguments must live until the
//     stream has executed the op;
//   - a wrong shape or type is a mistake in Sluice: the call aborts and names the symbol
//     (ops/shape_contract.h);
//   - a KV element or a weight format that the backend has no kernel for is a kUnsupported that the
//     call throws (ops/kv_blocks.h, ops/matmul/packed_weight.h).
// Each op's comment has the slots Shapes, Types, Aliasing, Order and Errors, and Source where the
// arithmetic is published; tools/check_layers.py holds it to that. Thread rule: stateless.
#pragma once

#include "ops/op_list.h"
#include "ops/op_needs.h"

namespace sluice {

// One pure virtual per op of the list, with the contract of the free function of that name.
// Arguments have passed that function's shape contract; implementations do not check shapes again.
class Ops {
 public:
  virtual ~Ops() = default;

  // See prepare_ops, op_memory_bytes, packed_weight_bytes and keeps_gguf.
  virtual size_t memory_bytes(const OpNeeds& needs) const = 0;
  virtual void prepare(Stream& stream, const OpNeeds& needs) const = 0;
  virtual size_t packed_weight_bytes(int64_t num_rows, int64_t num_cols,
                                     WeightFormat format) const = 0;
  virtual bool keeps_gguf(WeightFormat format) const = 0;

#define SLUICE_PURE_OP(name, Args) virtual void name(Stream& stream, const Args& args) const = 0;
  SLUICE_CORE_OPS(SLUICE_PURE_OP)
  SLUICE_EXPERT_OPS(SLUICE_PURE_OP)
  SLUICE_DELTA_OPS(SLUICE_PURE_OP)
  SLUICE_PAGE_OPS(SLUICE_PURE_OP)
  SLUICE_TILE_OPS(SLUICE_PURE_OP)
#undef SLUICE_PURE_OP
};

// The kernels of the backend that `device` belongs to.
const Ops& ops_of(const Device& device);

// Device memory that ops keep for one stream: scratch and workspaces of products and attention.
size_t op_memory_bytes(const Device& device, const OpNeeds& needs);

// Allocates that memory and opens the libraries of the ops now instead of in the first calls. The
// memory plan counts it, a graph capture finds it allocated, and a missing library shows at start.
// Order: errors are thrown at the next host wait for the stream.
void prepare_ops(Stream& stream, const OpNeeds& needs = {});

}  // namespace sluice
