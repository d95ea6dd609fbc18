// What is linked instead of features_x86.cc on aarch64, where kernels of portable vectors run and
// Linux names the processor.
#include <fstream>
#include <string>
#include <string_view>

#include "device/cpu/cpu_features.h"
#include "device/host/waiting.h"

namespace sluice {
namespace {

// The text after "name : " of the first such line; empty without one.
std::string first_value(std::string_view name) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(name) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

}  // namespace

CpuIsa detected_isa() { return CpuIsa::kScalar; }

std::string cpu_brand_name() {
  std::string name = first_value("model name");
  if (!name.empty()) return name;
  // Mostly there are numbers alone: 0x41 and 0xd4f are a Neoverse V2, as in Grace.
  const std::string maker = first_value("CPU implementer"), part = first_value("CPU part");
  if (maker.empty() || part.empty()) return "unknown CPU";
  return "Arm CPU, implementer " + maker + ", part " + part;
}

// Empties the pipeline; Arm's "yield" does nothing on most cores.
void pause_core() { asm volatile("isb"); }

}  // namespace sluice
