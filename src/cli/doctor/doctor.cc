// sluice doctor: reports the machine's processor, memory and GPU, and measures their rates. Runs on
// the main thread.
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>

#include "cli/commands.h"
#include "cli/doctor/verdict.h"
#include "cli/gpu/gpu_link.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "device/cpu/cpu_features.h"
#include "device/device.h"
#include "device/host/memory_bandwidth.h"
#include "text/build_info.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

// Width of the right column: with the names beside it a row fits 80 columns.
constexpr size_t kMaxTextCells = 60;
constexpr int64_t kVerdictTokens = 128 << 10;

// All results, before they become a table or JSON.
struct Findings {
  std::string cpu_name;
  int num_cores = 0;  // hardware threads
  std::string isa;    // instruction set that the kernels use, which SLUICE_CPU_ISA may lower
  bool has_amx = false;
  size_t memory_bytes = 0;
  size_t free_bytes = 0;   // available now
  std::string huge_pages;  // the kernel's active setting: "madvise"
  int num_threads = 0;     // used for the measurement
  double dram_read_bytes_per_second = 0;
  bool has_gpu = false;
  size_t gpu_bytes = 0;
  std::string gpu;  // name and memory, or why there is none
  std::optional<LinkFindings> link;
  std::string why_no_link;  // the error, if there is a GPU and `link` is empty
  bool lock_unlimited = false;
  size_t lock_limit_bytes = 0;  // ulimit -l
};

// The word in brackets of a kernel setting such as "always [madvise] never".
std::string huge_page_mode() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  if (!std::getline(file, line)) return "unknown";
  const size_t begin = line.find('['), end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "unknown";
  return line.substr(begin + 1, end - begin - 1);
}

// A missing GPU is a finding, not an error.
void look_for_gpu(Findings* findings) {
  try {
    const DeviceInfo info = make_device("cuda")->info();
    findings->has_gpu = true;
    findings->gpu_bytes = info.total_memory_bytes;
    findings->gpu = fmt::format("{}, {}", info.name,
                                format_bytes(static_cast<double>(info.total_memory_bytes)));
  } catch (const Error& error) {
    // Nobody asked for one, as the error would say.
    const std::string why = why_no_gpu();
    findings->gpu = "none: " + (why.empty() ? error.what() : why);
  }
}

// A failed measurement is a finding as well: the rest of the report is still useful.
void look_at_link(Findings* findings) {
  if (!findings->has_gpu) return;
  try {
    findings->link = measure_gpu_link();
  } catch (const Error& error) {
    findings->why_no_link = error.what();
  }
}

// Limit of locked memory (RLIMIT_MEMLOCK).
void look_at_locking(Findings* findings) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return;
  findings->lock_unlimited = limit.rlim_cur == RLIM_INFINITY;
  findings->lock_limit_bytes = findings->lock_unlimited ? 0 : limit.rlim_cur;
}

// Runs all measurements, some seconds each, with a progress line. Errors: Interrupted.
Findings examine(const DoctorCommand& command) {
  Findings findings;
  const DeviceInfo cpu = make_device("cpu")->info();
  findings.cpu_name = cpu_brand_name();
  findings.num_cores = static_cast<int>(std::thread::hardware_concurrency());
  findings.isa = cpu_isa_name(best_isa());
  // Of the processor, whatever instruction set is in use.
  findings.has_amx = detected_isa() >= CpuIsa::kAmx;
  findings.memory_bytes = cpu.total_memory_bytes;
  findings.free_bytes = cpu.free_memory_bytes;
  findings.huge_pages = huge_page_mode();
  findings.num_threads = command.engine.num_threads.value_or(findings.num_cores);
  // Each step takes up to a few seconds; Ctrl-C takes effect between them.
  const auto unless_interrupted = [] {
    if (interrupted()) throw Interrupted();
  };
  ProgressLine progress("measuring memory");
  findings.dram_read_bytes_per_second = measure_dram_read_bytes_per_second(findings.num_threads);
  unless_interrupted();
  progress.set_task("looking at the GPU");
  look_for_gpu(&findings);
  unless_interrupted();
  progress.set_task("measuring the link to the GPU");
  look_at_link(&findings);
  unless_interrupted();
  look_at_locking(&findings);
  return findings;
}

// A small limit makes pinning fail, so the text names the remedy.
std::string lock_limit_text(const Findings& findings) {
  if (findings.lock_unlimited) return "unlimited";
  return format_bytes(static_cast<double>(findings.lock_limit_bytes)) +
         " (ulimit -l; raise it before pinning a large KV cache)";
}

// Rows about the GPU's link; none without a GPU.
void describe_link(const Findings& findings, Table* table) {
  if (!findings.has_gpu) return;
  if (!findings.link) {
    table->add_wrapped("link to the GPU", "not measured: " + findings.why_no_link, kMaxTextCells);
    return;
  }
  const LinkFindings& found = *findings.link;
  table->add({"link to the GPU", describe_link(found.link)});
  table->add({"pinning", fmt::format("{:.1f} GB/s", found.pinning_bytes_per_second * 1e-9)});
  table->add(
      {"transfers of KV", fmt::format("copies for runs of {} and more, a kernel below",
                                      format_bytes(static_cast<double>(found.copy_run_bytes)))});
  table->add({"kept in", found.kept_in.empty() ? "no file: " + found.why_not_kept : found.kept_in});
}

// What is free now counts, since that is what an engine finds that is started next.
VerdictMachine machine_of(const Findings& findings) {
  return {.gpu_bytes = findings.gpu_bytes,
          .free_host_bytes = findings.free_bytes,
          .lockable_bytes = findings.lock_unlimited ? SIZE_MAX : findings.lock_limit_bytes,
          .read_bytes_per_second = findings.dram_read_bytes_per_second};
}

// One line for each usual size of a model.
std::string describe_verdicts(const Findings& findings) {
  std::string text;
  for (const UsualModel& model : kUsualModels) {
    text += fmt::format("{} in bf16 with {}: {}\n", model.name, format_tokens(kVerdictTokens),
                        verdict_on(model, kVerdictTokens, machine_of(findings)));
  }
  return text + "Estimates; `sluice inspect MODEL` plans one model.\n";
}

// The report as a table of two columns.
std::string describe(const Findings& findings) {
  Table table;
  table.align_left(1);
  table.add({"processor", findings.cpu_name});
  table.add({"hardware threads", fmt::format("{}", findings.num_cores)});
  table.add({"instructions used", findings.isa});
  table.add({"AMX (bf16 tiles)", findings.has_amx ? "yes" : "no"});
  table.add({"memory",
             fmt::format("{}, {} free", format_bytes(static_cast<double>(findings.memory_bytes)),
                         format_bytes(static_cast<double>(findings.free_bytes)))});
  table.add({"huge pages", findings.huge_pages == "never"
                               ? "never (decoding gains from madvise or always)"
                               : findings.huge_pages});
  table.add({"DRAM read rate",
             fmt::format("{:.1f} GB/s with {} threads", findings.dram_read_bytes_per_second * 1e-9,
                         findings.num_threads)});
  table.add_wrapped("GPU", findings.gpu, kMaxTextCells);
  describe_link(findings, &table);
  table.add_wrapped("lockable memory", lock_limit_text(findings), kMaxTextCells);
  table.add({"program",
             fmt::format("sluice {} ({}), {}", build_version(), build_commit(), build_type())});
  return table.to_string() + "\n" + describe_verdicts(findings);
}

// null without a measurement.
nlohmann::ordered_json link_findings_json(const Findings& findings) {
  if (!findings.link) return nullptr;
  const LinkFindings& found = *findings.link;
  nlohmann::ordered_json json = link_json(found.link);
  json["pinning_bytes_per_second"] = found.pinning_bytes_per_second;
  json["copy_run_bytes"] = found.copy_run_bytes;
  json["kept_in"] = found.kept_in;
  return json;
}

// The same sentences; programs that want numbers have those above.
nlohmann::ordered_json verdicts_json(const Findings& findings) {
  nlohmann::ordered_json json;
  for (const UsualModel& model : kUsualModels) {
    json[model.name] = verdict_on(model, kVerdictTokens, machine_of(findings));
  }
  return json;
}

// The report for programs: numbers without units in their values, units in the keys.
nlohmann::ordered_json findings_json(const Findings& findings) {
  return {{"cpu_name", findings.cpu_name},
          {"num_cores", findings.num_cores},
          {"isa", findings.isa},
          {"amx", findings.has_amx},
          {"memory_bytes", findings.memory_bytes},
          {"free_bytes", findings.free_bytes},
          {"huge_pages", findings.huge_pages},
          {"num_threads", findings.num_threads},
          {"dram_read_bytes_per_second", findings.dram_read_bytes_per_second},
          {"has_gpu", findings.has_gpu},
          {"gpu", findings.gpu},
          {"verdicts", verdicts_json(findings)},
          {"link", link_findings_json(findings)},
          {"lock_unlimited", findings.lock_unlimited},
          {"lock_limit_bytes", findings.lock_limit_bytes},
          {"version", build_version()},
          {"commit", build_commit()},
          {"build", build_type()}};
}

}  // namespace

int doctor(const DoctorCommand& command) {
  const Findings findings = examine(command);
  write_result(command.json ? json_text(findings_json(findings), 1) : describe(findings));
  return kExitOk;
}

}  // namespace sluice::cli
