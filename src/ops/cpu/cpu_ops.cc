// gated_product on the CPU: the product, then the gate. Other ops are defined with their kernels.
#include "ops/cpu/cpu_ops.h"

namespace sluice::cpu {

void CpuOps::gated_product(Stream& stream, const GatedProductArgs& args) const {
  matmul(stream, {.x = args.x, .weight = args.weight, .bias = {}, .out = args.gate_up});
  swiglu(stream, {.gate_up = args.gate_up, .out = args.out});
}

}  // namespace sluice::cpu
