// make_device: which names and options it accepts, and the errors for the others.
#include <string>

#include <gtest/gtest.h>

#include "core/error.h"
#include "device/cuda/cuda_door.h"
#include "device/device.h"

namespace sluice {
namespace {

TEST(MakeDevice, RefusesUnknownNames) {
  for (const char* spec : {"", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    try {
      make_device(spec);
      FAIL() << spec;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << spec;
      EXPECT_NE(std::string(error.what()).find("'cuda:N'"), std::string::npos) << error.what();
    }
  }
}

TEST(MakeDevice, AutoIsAlwaysThere) {
  const auto device = make_device("auto");
  EXPECT_EQ(device->kind(), num_cuda_devices() > 0 ? DeviceKind::kCuda : DeviceKind::kCpu);
}

TEST(MakeDevice, SaysWhatIsMissingForCuda) {
  if (num_cuda_devices() > 0) GTEST_SKIP() << "skipped: there is a GPU";
  try {
    make_device("cuda:3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("cuda:3"), std::string::npos) << error.what();
  }
}

TEST(MakeDevice, RefusesOptionsThatCannotBe) {
  EXPECT_THROW(make_device("cpu", {.num_threads = -1}), Error);
  EXPECT_THROW(make_device("cpu", {.num_threads = 1 << 20}), Error);
  EXPECT_THROW(make_device("cpu")->make_stream({.name = "s", .num_threads = -1}), Error);
}

}  // namespace
}  // namespace sluice
