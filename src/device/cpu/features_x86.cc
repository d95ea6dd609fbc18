// CPUID and the AMX permission: what an x86 processor says of itself.
#include <array>
#include <cstring>

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "device/cpu/cpu_features.h"
#include "device/host/waiting.h"

namespace sluice {
namespace {

// Requests the AMX tile registers from Linux; a process may not use them without permission. The
// permission covers all threads, also those already running.
// Source: Linux Documentation/arch/x86/xstate.rst.
bool request_amx_permission() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// CPUID leaf 7: tile products of bf16 and 8 bits, and tile registers; the kernel's permission comes
// last, so that it is requested only where there is AMX.
bool has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  constexpr unsigned kAmxInt8 = 1u << 25;
  constexpr unsigned kAll = kAmxBf16 | kAmxTile | kAmxInt8;
  return (edx & kAll) == kAll && request_amx_permission();
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
  return has_amx() ? CpuIsa::kAmx : CpuIsa::kAvx512Bf16;
}

}  // namespace

CpuIsa detected_isa() {
  static const CpuIsa isa = detect();
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

void pause_core() { __builtin_ia32_pause(); }

}  // namespace sluice
