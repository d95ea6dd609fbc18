// CpuIsa: the values of the environment override, and detection against /proc/cpuinfo.
#include "device/cpu/cpu_features.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <sys/utsname.h>

#include "core/error.h"
#include "device/device.h"

namespace sluice {
namespace {

constexpr CpuIsa kAllIsas[] = {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16,
                               CpuIsa::kAmx};

bool kernel_reports(const std::string& flag) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream flags(line);
    for (std::string word; flags >> word;) {
      if (word == flag) return true;
    }
    return false;
  }
  return false;
}

// Flags that a level needs in addition to the level below it.
struct LevelFlags {
  CpuIsa isa;
  std::vector<std::string> flags;
};

TEST(CpuFeatures, AgreesWithTheKernel) {
  const LevelFlags levels[] = {
      {CpuIsa::kAvx2, {"avx2", "fma", "f16c"}},
      {CpuIsa::kAvx512, {"avx512f", "avx512bw", "avx512dq", "avx512vl"}},
      {CpuIsa::kAvx512Bf16, {"avx512_bf16"}},
      {CpuIsa::kAmx, {"amx_bf16", "amx_tile"}},
  };
  CpuIsa expected = CpuIsa::kScalar;
  utsname system{};
  ASSERT_EQ(uname(&system), 0);
  // Under qemu-user the flags are those of the machine below.
  const bool is_x86 = std::string_view(system.machine) == "x86_64";
  for (const LevelFlags& level : levels) {
    if (!is_x86) break;
    if (!std::all_of(level.flags.begin(), level.flags.end(), kernel_reports)) break;
    expected = level.isa;
  }
  EXPECT_EQ(cpu_isa_name(detected_isa()), cpu_isa_name(expected));
}

TEST(CpuFeatures, TheOverrideLowersButNeverRaises) {
  for (CpuIsa detected : kAllIsas) {
    EXPECT_EQ(choose_isa("", detected), detected);
    for (CpuIsa wanted : kAllIsas) {
      if (wanted <= detected) {
        EXPECT_EQ(choose_isa(cpu_isa_name(wanted), detected), wanted);
        continue;
      }
      try {
        choose_isa(cpu_isa_name(wanted), detected);
        FAIL() << cpu_isa_name(wanted);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        const std::string text = error.what();
        EXPECT_NE(text.find(cpu_isa_name(wanted)), std::string::npos) << text;
        EXPECT_NE(text.find(cpu_isa_name(detected)), std::string::npos) << text;
      }
    }
  }
}

TEST(CpuFeatures, UnknownWordsAreErrors) {
  for (const char* word : {"AVX2", "avx", "sse", "avx512 ", "none"}) {
    try {
      choose_isa(word, CpuIsa::kAmx);
      FAIL() << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

// In a process of its own, where the level has not been read yet.
TEST(CpuFeaturesDeathTest, TheEnvironmentIsReadWhenADeviceIsMade) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto try_with = [](const char* wanted) {
    setenv("SLUICE_CPU_ISA", wanted, 1);
    try {
      make_device("cpu");
      std::fprintf(stderr, "level %s\n", std::string(cpu_isa_name(best_isa())).c_str());
    } catch (const Error& error) {
      std::fprintf(stderr, "error %s\n", error.what());
    }
    std::exit(0);
  };
  EXPECT_EXIT(try_with("scalar"), ::testing::ExitedWithCode(0), "level scalar");
  EXPECT_EXIT(try_with("fast"), ::testing::ExitedWithCode(0), "error SLUICE_CPU_ISA is 'fast'");
}

TEST(CpuFeatures, TheBrandIsWhatTheKernelShows) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (!line.starts_with("model name")) continue;
    EXPECT_NE(line.find(cpu_brand_name()), std::string::npos) << line;
    return;
  }
}

}  // namespace
}  // namespace sluice
