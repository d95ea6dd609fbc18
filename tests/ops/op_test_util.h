// What the tests of the small ops, attention and sampling share: a device with one stream, random
// tensors, and comparison with a double-precision reference.
//
// Used by tests/ops, which run on the device under test (support/test_device.h). Thread rule: host
// thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/kv_element.h"
#include "core/tensor_view.h"
#include "device/cpu/cpu_features.h"
#include "device/device.h"
#include "ops/matmul/packed_weight.h"
#include "support/test_device.h"

namespace sluice::testing {

// Formats that no backend has kernels for.
inline constexpr KvElement kElementWithoutKernels = static_cast<KvElement>(255);
inline constexpr WeightFormat kFormatWithoutKernels = {.numbers = static_cast<WeightNumbers>(255)};

// Calls `op`, which must refuse such a format.
template <typename F>
void expect_no_kernel(const F& op) {
  try {
    op();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(error.message().find("has no kernel for"), std::string::npos) << error.message();
  }
}

inline constexpr double kUnitF32 = 0x1p-24;  // half a unit in the last place of 1.0f
inline constexpr double kUnitBF16 = 0x1p-8;  // and of bf16

// Shared memory of a block of GPUs for workstations (compute capability 8.6, 8.9, 12.0).
inline constexpr size_t kSmallGpuSharedBytes = 99 * 1024;

// The device under test with one stream. Everything it allocates is full of NaN until a test writes
// it. `tensor` and `poisoned` give memory that host and kernels both reach: device memory of the
// CPU device, pinned memory elsewhere; after `synchronize` the host may read it. `allocate` and
// `upload` give device memory, which a GPU's host reaches by copies alone.
class Machine {
 public:
  // most_shared_bytes: as TestHooks has it.
  explicit Machine(int num_threads = 2, size_t most_shared_bytes = 0)
      : device_(make_test_device({.num_threads = num_threads},
                                 {.most_shared_bytes = most_shared_bytes})),
        stream_(device_->make_stream({.name = "test", .num_threads = num_threads})) {}
  ~Machine() {
    try {
      stream_->synchronize();
    } catch (const Error&) {
      // a test that provokes an asynchronous error has checked it already
    }
  }

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  bool on_cpu() const { return device_->kind() == DeviceKind::kCpu; }
  void synchronize() { stream_->synchronize(); }

  // Memory full of 0xFF, which is NaN in every float format.
  std::byte* poisoned(size_t num_bytes) {
    const MemoryKind kind = on_cpu() ? MemoryKind::kDevice : MemoryKind::kPinned;
    buffers_.push_back(device_->allocate(std::max<size_t>(num_bytes, 1), kind));
    std::memset(buffers_.back().data(), 0xFF, std::max<size_t>(num_bytes, 1));
    return buffers_.back().data();
  }

  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims) {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    return TensorView(poisoned(static_cast<size_t>(count) * dtype_bytes(dtype)), dtype, dims);
  }

  template <typename T>
  TensorView tensor(const std::vector<T>& values, std::initializer_list<int64_t> dims) {
    TensorView view = tensor(kDTypeOf<T>, dims);
    SLUICE_CHECK(view.num_elements() == static_cast<int64_t>(values.size()), "test tensor");
    if (!values.empty()) std::memcpy(view.bytes(), values.data(), view.num_bytes());
    return view;
  }

  std::byte* allocate(size_t num_bytes) {
    const size_t size_bytes = std::max<size_t>(num_bytes, 1);
    buffers_.push_back(device_->allocate(size_bytes, MemoryKind::kDevice));
    stream_->fill(buffers_.back().data(), size_bytes, 0xFF);
    return buffers_.back().data();
  }

  template <typename T>
  TensorView upload(const std::vector<T>& values, std::initializer_list<int64_t> dims) {
    const size_t num_bytes = values.size() * sizeof(T);
    std::byte* data = allocate(num_bytes);
    stream_->copy({.dst = data,
                   .src = reinterpret_cast<const std::byte*>(values.data()),
                   .num_bytes = num_bytes});
    stream_->synchronize();
    return TensorView(data, kDTypeOf<T>, dims);
  }

  template <typename T>
  std::vector<T> download(const TensorView& view) {
    std::vector<T> values(static_cast<size_t>(view.num_elements()));
    stream_->copy({.dst = reinterpret_cast<std::byte*>(values.data()),
                   .src = view.bytes(),
                   .num_bytes = view.num_bytes()});
    stream_->synchronize();
    return values;
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

template <typename T>
std::vector<T> values_of(const TensorView& view) {
  const T* data = view.data<T>();
  return std::vector<T>(data, data + view.num_elements());
}

inline std::vector<BFloat16> random_bf16(int64_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<BFloat16> values;
  for (int64_t i = 0; i < count; ++i) values.emplace_back(normal(generator));
  return values;
}

// Raw bytes, for equality of bits (NaN equals itself, 0 differs from -0).
inline std::vector<std::byte> bytes_of(const TensorView& view) {
  return std::vector<std::byte>(view.bytes(), view.bytes() + view.num_bytes());
}

inline double element(const TensorView& view, int64_t i) {
  if (view.dtype() == DType::kBF16) return static_cast<float>(view.data<BFloat16>()[i]);
  return view.data<float>()[i];
}

// Asserts |actual - expected| <= bound[i] for every element; NaN and infinity must be at the same
// places. Also bounds the normalised mean square error by `nmse_bound`.
inline void expect_close(const TensorView& actual, const std::vector<double>& expected,
                         const std::vector<double>& bound, double nmse_bound) {
  ASSERT_EQ(actual.num_elements(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = element(actual, static_cast<int64_t>(i));
    ASSERT_EQ(std::isnan(value), std::isnan(expected[i])) << "element " << i << ": " << value;
    ASSERT_EQ(std::isinf(value), std::isinf(expected[i])) << "element " << i << ": " << value;
  }
  double error = 0.0;
  double power = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = element(actual, static_cast<int64_t>(i));
    if (!std::isfinite(expected[i])) continue;
    ASSERT_LE(std::abs(value - expected[i]), bound[i])
        << "element " << i << ": " << value << " instead of " << expected[i];
    error += (value - expected[i]) * (value - expected[i]);
    power += expected[i] * expected[i];
  }
  EXPECT_LE(error, nmse_bound * power) << "NMSE " << error / power;
}

// The ISA levels that this machine can run, each with its own kernels. Other devices than the CPU
// have one set of kernels; the list has one entry for it.
inline std::vector<CpuIsa> runnable_isas() {
  if (!testing_cpu()) return {CpuIsa::kScalar};
  std::vector<CpuIsa> isas;
  for (CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx}) {
    if (isa <= detected_isa()) isas.push_back(isa);
  }
  return isas;
}

inline CpuIsa best_kernels() { return runnable_isas().back(); }

// For the names of tests: "avx2", or "gpu" where there are no levels.
inline std::string kernels_name(CpuIsa isa) {
  return testing_cpu() ? std::string(cpu_isa_name(isa)) : "gpu";
}

}  // namespace sluice::testing
