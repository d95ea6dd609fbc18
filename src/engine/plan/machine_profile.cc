// The file, version 1: {"version": 1, "gpus": {"GPU-1b3f...": {"measured_on": ..., ...}}}.
#include "engine/plan/machine_profile.h"

#include <cstdlib>
#include <map>

#include <fmt/format.h>

#include "core/error.h"
#include "io/file.h"
#include "io/json.h"
#include "io/json_type.h"

namespace sluice {
namespace {

// A file of another version is measured again, not converted.
constexpr int64_t kVersion = 1;
// Plausibility limits: a value beyond them means a broken file.
constexpr double kMaxRate = 1e15;
constexpr int64_t kMaxRunBytes = int64_t{1} << 40;

// By GPU id.
using Profiles = std::map<std::string, MachineProfile>;

// Errors: kModel for a missing key or a value out of range.
MachineProfile parse_profile(const JsonObject& entry) {
  return {.measured_on = entry.get_string("measured_on"),
          .copy_run_bytes = static_cast<size_t>(entry.get_int("copy_run_bytes", 0, kMaxRunBytes)),
          .to_device_bytes_per_second = entry.get_double("to_device_bytes_per_second", 0, kMaxRate),
          .to_host_bytes_per_second = entry.get_double("to_host_bytes_per_second", 0, kMaxRate),
          .both_bytes_per_second = entry.get_double("both_bytes_per_second", 0, kMaxRate),
          .pinning_bytes_per_second = entry.get_double("pinning_bytes_per_second", 0, kMaxRate)};
}

nlohmann::ordered_json to_json(const MachineProfile& profile) {
  return {{"measured_on", profile.measured_on},
          {"copy_run_bytes", profile.copy_run_bytes},
          {"to_device_bytes_per_second", profile.to_device_bytes_per_second},
          {"to_host_bytes_per_second", profile.to_host_bytes_per_second},
          {"both_bytes_per_second", profile.both_bytes_per_second},
          {"pinning_bytes_per_second", profile.pinning_bytes_per_second}};
}

// All entries of the file; empty if there is no file. Errors: kModel and kIo for an unusable file.
Profiles read_profiles(const std::filesystem::path& path) {
  std::error_code unknown;
  if (path.empty() || !std::filesystem::exists(path, unknown)) return {};
  const nlohmann::json document = read_json_file(path);
  const JsonObject file(document, path.string());
  file.get_int("version", kVersion, kVersion);
  const JsonObject gpus = file.get_object("gpus");
  Profiles profiles;
  for (const std::string& id : gpus.keys()) {
    profiles.emplace(id, parse_profile(gpus.get_object(id)));
  }
  return profiles;
}

}  // namespace

std::filesystem::path machine_profile_path() {
  const auto folder_of = [](const char* name) {
    const char* value = std::getenv(name);
    const std::filesystem::path folder = value == nullptr ? "" : value;
    // The XDG base directory specification says to ignore relative paths.
    return folder.is_absolute() ? folder : std::filesystem::path();
  };
  std::filesystem::path cache = folder_of("XDG_CACHE_HOME");
  if (cache.empty() && !folder_of("HOME").empty()) cache = folder_of("HOME") / ".cache";
  return cache.empty() ? cache : cache / "sluice" / "machine.json";
}

std::optional<MachineProfile> read_machine_profile(const std::filesystem::path& path,
                                                   const std::string& gpu_id, std::string* note) {
  try {
    // The whole file is checked, so one broken entry makes it unusable for every GPU.
    const Profiles profiles = read_profiles(path);
    const auto found = profiles.find(gpu_id);
    if (found != profiles.end()) return found->second;
  } catch (const Error& error) {
    // The JSON reader words its remedies for model files, so its message does not fit here.
    const std::string why = error.code() == ErrorCode::kIo
                                ? error.message()
                                : "it is not what this version of `sluice doctor` writes";
    *note =
        fmt::format("{} is ignored: {}; run `sluice doctor` to write it anew", path.string(), why);
  }
  return std::nullopt;
}

void write_machine_profile(const std::filesystem::path& path, const std::string& gpu_id,
                           const MachineProfile& profile) {
  Profiles profiles;
  try {
    profiles = read_profiles(path);
  } catch (const Error&) {
    // An unusable file is replaced; the other GPUs are measured again when doctor runs on them.
  }
  profiles[gpu_id] = profile;
  nlohmann::ordered_json gpus;
  for (const auto& [id, known] : profiles) gpus[id] = to_json(known);
  std::error_code failed;  // ignored: write_file then fails and reports the reason
  std::filesystem::create_directories(path.parent_path(), failed);
  const nlohmann::ordered_json document = {{"version", kVersion}, {"gpus", gpus}};
  write_file(path, document.dump(1) + "\n");
}

}  // namespace sluice
