// The file of measured link rates: one entry per GPU, ignored when it is invalid; and the choice of
// transfers that follows from it.
#include "engine/plan/machine_profile.h"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/plan/transfer_choice.h"
#include "io/temp_dir.h"

namespace sluice {
namespace {

MachineProfile profile_of(size_t copy_run_bytes) {
  return {.measured_on = "2026-11-21",
          .copy_run_bytes = copy_run_bytes,
          .to_device_bytes_per_second = 55.5e9,
          .to_host_bytes_per_second = 55.4e9,
          .both_bytes_per_second = 101.7e9,
          .pinning_bytes_per_second = 28e9};
}

TEST(MachineProfileTest, WhatIsWrittenIsRead) {
  const TempDir folder;
  const auto path = folder.path() / "new" / "sluice" / "machine.json";
  std::string note;
  EXPECT_FALSE(read_machine_profile(path, "GPU-a", &note));
  write_machine_profile(path, "GPU-a", profile_of(1 << 20));
  write_machine_profile(path, "GPU-b", profile_of(1 << 21));
  write_machine_profile(path, "GPU-a", profile_of(1 << 22));
  const auto a = read_machine_profile(path, "GPU-a", &note);
  const auto b = read_machine_profile(path, "GPU-b", &note);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->copy_run_bytes, size_t{1} << 22);
  EXPECT_EQ(b->copy_run_bytes, size_t{1} << 21);
  EXPECT_EQ(a->measured_on, "2026-11-21");
  EXPECT_EQ(a->to_device_bytes_per_second, 55.5e9);
  EXPECT_EQ(a->to_host_bytes_per_second, 55.4e9);
  EXPECT_EQ(a->both_bytes_per_second, 101.7e9);
  EXPECT_EQ(a->pinning_bytes_per_second, 28e9);
  EXPECT_FALSE(read_machine_profile(path, "GPU-c", &note));
  EXPECT_EQ(note, "");
}

TEST(MachineProfileTest, AFileThatCannotBeUsedIsIgnoredWithANoteAndWrittenAnew) {
  const TempDir folder;
  for (const char* text : {"", "{", "[]", "{\"version\": 2, \"gpus\": {}}", "{\"version\": 1}",
                           "{\"version\": 1, \"gpus\": {\"GPU-a\": {\"copy_run_bytes\": 1}}}",
                           "{\"version\": 1, \"gpus\": {\"GPU-a\": {\"measured_on\": \"x\", "
                           "\"copy_run_bytes\": -5}}}"}) {
    const auto path = folder.write("machine.json", text);
    std::string note;
    EXPECT_FALSE(read_machine_profile(path, "GPU-a", &note)) << text;
    EXPECT_NE(note.find("machine.json"), std::string::npos) << note;
    EXPECT_NE(note.find("sluice doctor"), std::string::npos) << note;
    write_machine_profile(path, "GPU-a", profile_of(1 << 20));
    note.clear();
    EXPECT_TRUE(read_machine_profile(path, "GPU-a", &note)) << text;
    EXPECT_EQ(note, "");
  }
}

TEST(MachineProfileTest, WhereNothingCanBeWrittenIsAnError) {
  const TempDir folder;
  const auto file = folder.write("file", "not a folder");
  try {
    write_machine_profile(file / "sluice" / "machine.json", "GPU-a", profile_of(1));
    FAIL() << "wrote it";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
  }
}

class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(MachineProfileTest, LiesInTheUsersCache) {
  const Environment home("HOME", "/users/a");
  {
    const Environment cache("XDG_CACHE_HOME", "/caches/a");
    EXPECT_EQ(machine_profile_path(), "/caches/a/sluice/machine.json");
  }
  for (const char* unusable : {static_cast<const char*>(nullptr), "", "relative"}) {
    const Environment cache("XDG_CACHE_HOME", unusable);
    EXPECT_EQ(machine_profile_path(), "/users/a/.cache/sluice/machine.json");
    const Environment homeless("HOME", nullptr);
    EXPECT_EQ(machine_profile_path(), "");
  }
}

TEST(TransferChoiceTest, ACpuCopiesUnlessToldOtherwise) {
  const auto device = make_device("cpu");
  EngineOptions options;
  EXPECT_EQ(choose_transfers(options, *device).copy_run_bytes, 0u);
  EXPECT_TRUE(choose_transfers(options, *device).notes.empty());
  options.kv.copy_bytes = 3 << 19;
  EXPECT_EQ(choose_transfers(options, *device).copy_run_bytes, size_t{3} << 19);
  EXPECT_EQ(
      choose_transfers(options, *device).notes,
      std::vector<std::string>{"transfers: copies for runs of 1.5 MiB and more, a kernel below "
                               "(kv_copy_bytes)"});
  options.kv.copy_bytes = 0;
  EXPECT_EQ(choose_transfers(options, *device).notes,
            std::vector<std::string>{"transfers: copies (kv_copy_bytes)"});
}

// For a GPU of this machine: the default until it has been measured, then the measured choice.
TEST(TransferChoiceTest, AGpuTakesWhatWasMeasured) {
  if (!why_no_gpu().empty()) GTEST_SKIP() << "skipped: no GPU";
  const TempDir folder;
  const Environment cache("XDG_CACHE_HOME", folder.path().c_str());
  const auto device = make_device("cuda");
  EngineOptions options;
  options.device = "cuda";
  const TransferChoice by_default = choose_transfers(options, *device);
  EXPECT_EQ(by_default.copy_run_bytes, size_t{2} << 20);
  EXPECT_EQ(by_default.link_bytes_per_second, 0);
  ASSERT_EQ(by_default.notes.size(), 1u);
  EXPECT_NE(by_default.notes[0].find("run `sluice doctor` to measure"), std::string::npos);
  write_machine_profile(machine_profile_path(), gpu_id("cuda"), profile_of(1 << 20));
  const TransferChoice measured = choose_transfers(options, *device);
  EXPECT_EQ(measured.copy_run_bytes, size_t{1} << 20);
  EXPECT_EQ(measured.link_bytes_per_second, 55.5e9);
  EXPECT_EQ(measured.notes, std::vector<std::string>{
                                "transfers: copies for runs of 1.0 MiB and more, a kernel below "
                                "(measured by sluice doctor on 2026-11-21)"});
  std::ofstream(machine_profile_path()) << "{";
  EXPECT_EQ(choose_transfers(options, *device).copy_run_bytes, size_t{2} << 20);
  EXPECT_EQ(choose_transfers(options, *device).notes.size(), 2u);
}

}  // namespace
}  // namespace sluice
