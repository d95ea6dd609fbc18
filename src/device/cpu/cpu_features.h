// CpuIsa: which vector instructions the kernels of this process may use.
//
// Read by src/ops/cpu for run-time dispatch and by `sluice doctor`. The environment variable
// SLUICE_CPU_ISA lowers the level (scalar, avx2, avx512, avx512bf16, amx), so that one machine can
// test every variant. Thread rule: any thread; detection runs once.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Each level includes the ones before it: AVX2 may be used if `isa >= CpuIsa::kAvx2`.
enum class CpuIsa {
  kScalar,
  kAvx2,        // with FMA and F16C
  kAvx512,      // F, BW, DQ and VL
  kAvx512Bf16,  // VDPBF16PS
  kAmx,         // tiles with bf16 products, permitted by the kernel
};

// "scalar", "avx2", ...: the words of SLUICE_CPU_ISA.
std::string_view cpu_isa_name(CpuIsa isa);

// The highest level that this machine and its operating system support; ignores the environment.
// The first call requests the AMX tile state from the kernel, for the whole process.
CpuIsa detected_isa();

// The level to use: that of SLUICE_CPU_ISA, or `detected_isa()` if it is not set.
// Errors: kInvalidArgument for an unknown word; kUnsupported for a level the machine lacks.
CpuIsa best_isa();

// The rule of `best_isa` as a pure function, for tests: `wanted` empty means `detected`.
// Errors: those of best_isa.
CpuIsa choose_isa(std::string_view wanted, CpuIsa detected);

// "Intel(R) Xeon(R) ...", as the processor calls itself.
std::string cpu_brand_name();

}  // namespace sluice
