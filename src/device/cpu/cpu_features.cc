// CPUID, the AMX permission and the environment override.
#include "device/cpu/cpu_features.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/error.h"

namespace sluice {
namespace {

constexpr std::array kAllIsas{CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16,
                              CpuIsa::kAmx};

// Requests the AMX tile registers from Linux; a process may not use them without permission. The
// permission covers all threads, also those already running.
// Source: Linux Documentation/arch/x86/xstate.rst.
bool request_amx_permission() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// CPUID leaf 7: bf16 tile products and tile registers; the kernel's permission comes last, so that
// it is requested only where there is AMX.
bool has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0 && request_amx_permission();
}

// CPUID leaf 1. Not __builtin_cpu_supports, since some compilers do not accept "f16c".
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kF16c = 1u << 29;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & kF16c) != 0;
}

CpuIsa detect() {
  // The compiler's checks include that the operating system saves the registers.
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
    return CpuIsa::kScalar;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return CpuIsa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return CpuIsa::kAvx512;
  return has_amx_bf16() ? CpuIsa::kAmx : CpuIsa::kAvx512Bf16;
}

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

CpuIsa detected_isa() {
  static const CpuIsa isa = detect();
  return isa;
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

std::string cpu_brand_name() {
  // CPUID leaves 0x80000002 to 0x80000004 give 16 characters each.
  std::array<unsigned, 12> words{};
  for (unsigned i = 0; i < 3; ++i) {
    unsigned* w = &words[4 * i];
    if (__get_cpuid(0x80000002u + i, &w[0], &w[1], &w[2], &w[3]) == 0) return "unknown CPU";
  }
  std::array<char, sizeof(words) + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof(words));
  std::string brand(text.data());
  brand.erase(0, brand.find_first_not_of(' '));  // old processors pad on the left
  brand.erase(brand.find_last_not_of(' ') + 1);
  return brand;
}

}  // namespace sluice
