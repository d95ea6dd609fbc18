// The names of the levels and the environment override.
#include "device/cpu/cpu_features.h"

#include <array>
#include <cstdlib>

#include "core/error.h"

namespace sluice {
namespace {

constexpr std::array kAllIsas{CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16,
                              CpuIsa::kAmx};

}  // namespace

std::string_view cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512bf16";
    case CpuIsa::kAmx:
      return "amx";
  }
  return "?";
}

CpuIsa choose_isa(std::string_view wanted, CpuIsa detected) {
  if (wanted.empty()) return detected;
  for (CpuIsa isa : kAllIsas) {
    if (cpu_isa_name(isa) != wanted) continue;
    if (isa <= detected) return isa;
    fail(ErrorCode::kUnsupported,
         "SLUICE_CPU_ISA asks for '{}', but this machine offers '{}' at most; unset it or name a "
         "lower one",
         wanted, cpu_isa_name(detected));
  }
  fail(ErrorCode::kInvalidArgument,
       "SLUICE_CPU_ISA is '{}'; say scalar, avx2, avx512, avx512bf16 or amx", wanted);
}

CpuIsa best_isa() {
  static const CpuIsa isa = [] {
    const char* wanted = std::getenv("SLUICE_CPU_ISA");
    return choose_isa(wanted == nullptr ? "" : wanted, detected_isa());
  }();
  return isa;
}

}  // namespace sluice
