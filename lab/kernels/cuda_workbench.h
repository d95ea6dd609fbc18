// Shared by the benchmarks of CUDA kernels: a GPU, a stream, tensors of random numbers, and times
// by the GPU's clock.
//
// Used by cuda_{attention,decode,delta,layer,ops}_bench. Thread rule: main thread.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <vector>

#include "core/arena.h"
#include "core/tensor_view.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_stream.h"
#include "ops/matmul/matmul.h"

namespace sluice::bench {

class Workbench {
 public:
  // bf16 numbers have the given standard deviation, f32 numbers three times that.
  explicit Workbench(float deviation = 1.0f)
      : device_(0, {}, nullptr),
        memory_(device_.allocate(kArenaBytes, MemoryKind::kDevice)),
        arena_(memory_.data(), kArenaBytes),
        stream_(device_.make_stream({.name = "bench"})) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0.0f, deviation);
    std::vector<BFloat16> halves;
    std::vector<float> floats;
    for (size_t i = 0; i < kNoiseElements; ++i) {
      halves.emplace_back(normal(generator));
      floats.push_back(3.0f * normal(generator));
    }
    bf16_noise_ = upload(halves);
    f32_noise_ = upload(floats);
  }

  CudaDevice& device() { return device_; }
  CudaStream& stream() { return as_cuda(*stream_); }

  // Device memory is cut from one large allocation while that lasts, as in the engine: separate
  // allocations are slower to read in some processes.
  std::byte* allocate(size_t num_bytes, MemoryKind kind = MemoryKind::kDevice) {
    if (kind == MemoryKind::kDevice && arena_.used_bytes() + num_bytes <= kArenaBytes) {
      return arena_.take(num_bytes);
    }
    buffers_.push_back(device_.allocate(std::max<size_t>(num_bytes, 2), kind));
    return buffers_.back().data();
  }

  // Normally distributed numbers, since some kernels are faster on zeros; f32 for that dtype, else
  // bf16. Each call begins at another place of the table, so that no query equals a key.
  std::byte* noise(size_t num_bytes, MemoryKind kind = MemoryKind::kDevice,
                   DType dtype = DType::kBF16) {
    std::byte* data = allocate(num_bytes, kind);
    const Buffer& numbers = dtype == DType::kF32 ? f32_noise_ : bf16_noise_;
    noise_begin_ = (noise_begin_ + kNoiseStep) % kNoiseElements;
    size_t begin = noise_begin_ * dtype_bytes(dtype == DType::kF32 ? dtype : DType::kBF16);
    for (size_t offset = 0; offset < num_bytes;) {
      const size_t count = std::min(numbers.size_bytes() - begin, num_bytes - offset);
      stream_->copy({.dst = data + offset, .src = numbers.data() + begin, .num_bytes = count});
      offset += count;
      begin = 0;
    }
    stream_->synchronize();
    return data;
  }

  TensorView tensor(DType dtype, std::initializer_list<int64_t> dims) {
    const TensorView shape(nullptr, dtype, dims);
    return TensorView(noise(shape.num_bytes(), MemoryKind::kDevice, dtype), dtype, dims);
  }

  template <typename T>
  TensorView tensor(const std::vector<T>& values, std::initializer_list<int64_t> dims) {
    std::byte* data = allocate(values.size() * sizeof(T));
    upload(values, data);
    return TensorView(data, kDTypeOf<T>, dims);
  }
  template <typename T>
  TensorView tensor(const std::vector<T>& values) {
    return tensor(values, {std::ssize(values)});
  }

  PackedWeight weight(int64_t n, int64_t k, WeightFormat format = WeightFormat::kBFloat16) {
    if (has_scales(format)) return weight_of_codes(n, k, format);
    if (stores_gguf(format)) return weight_of_blocks(n, k, format);
    return {.data = tensor(DType::kBF16, {n, k}).bytes(), .num_rows = n, .num_cols = k};
  }

  void free_all() {
    buffers_.clear();
    arena_ = Arena(memory_.data(), kArenaBytes);
  }

  // Seconds of one call of enqueue(i), i = 0, 1, ...: the median over replays of a graph of
  // `num_calls` calls.
  double seconds(int num_calls, const std::function<void(int)>& enqueue) {
    enqueue(0);  // the first call may initialise things, which a graph must not contain
    stream_->synchronize();
    const auto graph = stream_->capture([&] {
      for (int i = 0; i < num_calls; ++i) enqueue(i);
    });
    return median_seconds([&] { stream_->launch(*graph); }) / num_calls;
  }

  // Median seconds of the work that `enqueue` puts on the stream, by the GPU's clock.
  double median_seconds(const std::function<void()>& enqueue) {
    constexpr int kWarmUps = 2;
    cudaEvent_t begin, end;
    check_cuda(cudaEventCreate(&begin), "cudaEventCreate");
    check_cuda(cudaEventCreate(&end), "cudaEventCreate");
    std::vector<double> samples;
    for (int i = 0; i < kWarmUps + 9; ++i) {
      check_cuda(cudaEventRecord(begin, stream().handle()), "cudaEventRecord");
      enqueue();
      check_cuda(cudaEventRecord(end, stream().handle()), "cudaEventRecord");
      stream_->synchronize();
      float milliseconds = 0.0f;
      check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
      if (i >= kWarmUps) samples.push_back(milliseconds * 1e-3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

  // Bytes per second, read plus written, of consecutive device-to-device copies of `copy_bytes`
  // each, over more memory than the L2 holds. Not from a graph, where copies are slower.
  double copy_rate(size_t copy_bytes = kCopiedBytes) {
    std::byte* from = noise(kCopiedBytes);
    std::byte* to = allocate(kCopiedBytes);
    const size_t num_copies = std::clamp<size_t>(kCopiedBytes / copy_bytes, 1, 64);
    const double time = median_seconds([&] {
      for (size_t at = 0; at < num_copies * copy_bytes; at += copy_bytes) {
        stream_->copy({.dst = to + at, .src = from + at, .num_bytes = copy_bytes});
      }
    });
    free_all();
    return 2.0 * static_cast<double>(num_copies * copy_bytes) / time;
  }

 private:
  static constexpr size_t kArenaBytes = size_t{12} << 30;
  static constexpr size_t kCopiedBytes = size_t{4} << 30;
  // Not a power of two, so that rows of a matrix differ.
  static constexpr size_t kNoiseElements = (size_t{1} << 20) + 8;
  static constexpr size_t kNoiseStep = 100003;

  // Random codes with the bits of `mask`, eight a word.
  static std::vector<uint64_t> random_codes(int64_t count, uint64_t mask) {
    std::vector<uint64_t> codes(static_cast<size_t>(count / 8));
    std::mt19937_64 generator(1);
    for (uint64_t& eight : codes) eight = generator() & mask;
    return codes;
  }
  static TensorView view_of(std::vector<uint64_t>& codes, int64_t n, int64_t k) {
    return TensorView(reinterpret_cast<std::byte*>(codes.data()), DType::kU8, {n, k});
  }

  PackedWeight packed_weight(int64_t n, int64_t k, WeightFormat format) {
    return {.data = allocate(packed_weight_bytes(device_, n, k, format)),
            .num_rows = n,
            .num_cols = k,
            .format = format};
  }

  // Codes of GGUF's blocks of any value, factors of 1 and minima in the middle.
  PackedWeight weight_of_blocks(int64_t n, int64_t k, WeightFormat format) {
    const bool is_4 = format.numbers == WeightNumbers::kGguf4;
    auto codes = random_codes(n * k, is_4 ? 0x0f0f0f0f0f0f0f0fu : ~uint64_t{0});
    const int64_t groups = k / format.group_cols, blocks = k / format.block_cols;
    std::vector<uint8_t> factors(static_cast<size_t>(n * groups), 1);
    std::vector<uint8_t> minima(factors.size(), is_4 ? 8 : 0);
    // 2^-7 and 2^-11.
    const auto bits = static_cast<uint16_t>(is_4 ? 0x2000 : 0x1000);
    std::vector<Float16> scales(static_cast<size_t>(n * blocks), Float16{bits});
    const TensorView of_blocks(scales.data(), DType::kF16, {n, blocks});
    GgufValues values{.factors = TensorView(factors.data(), DType::kU8, {n, groups}),
                      .minima = {},
                      .scales = of_blocks,
                      .min_scales = {}};
    if (format.has_minima) {
      values.minima = TensorView(minima.data(), DType::kU8, {n, groups});
      values.min_scales = of_blocks;
    }
    const PackedWeight weight = packed_weight(n, k, format);
    pack_weight(*stream_, {.src = view_of(codes, n, k), .dst = weight, .values = values});
    stream_->synchronize();
    return weight;
  }

  // Codes of any value but the NaN of e4m3, and zero points in the middle.
  PackedWeight weight_of_codes(int64_t n, int64_t k, WeightFormat format) {
    const bool is_e4m3 = stores_e4m3(format);
    auto codes = random_codes(n * k, is_e4m3 ? 0xbfbfbfbfbfbfbfbfu : 0x0f0f0f0f0f0f0f0fu);
    const int64_t per_row = scales_per_row(format, k);
    const int64_t scale_rows = (n + format.group_rows - 1) / format.group_rows;
    std::vector<float> scales(static_cast<size_t>(scale_rows * per_row), is_e4m3 ? 0.05f : 0.01f);
    std::vector<uint8_t> zeros(scales.size(), 8);
    const PackedWeight weight = packed_weight(n, k, format);
    PackWeightArgs args = {.src = view_of(codes, n, k),
                           .dst = weight,
                           .scales = TensorView(reinterpret_cast<std::byte*>(scales.data()),
                                                DType::kF32, {scale_rows, per_row}),
                           .scale_rows = format.group_rows};
    if (!is_e4m3)
      args.zeros = TensorView(reinterpret_cast<std::byte*>(zeros.data()), DType::kU8, {n, per_row});
    pack_weight(*stream_, args);
    stream_->synchronize();
    return weight;
  }

  template <typename T>
  Buffer upload(const std::vector<T>& values) {
    Buffer buffer = device_.allocate(values.size() * sizeof(T), MemoryKind::kDevice);
    upload(values, buffer.data());
    return buffer;
  }
  template <typename T>
  void upload(const std::vector<T>& values, std::byte* to) {
    stream_->copy({.dst = to,
                   .src = reinterpret_cast<const std::byte*>(values.data()),
                   .num_bytes = values.size() * sizeof(T)});
    stream_->synchronize();
  }

  CudaDevice device_;
  Buffer memory_;
  Arena arena_;
  Buffer bf16_noise_;
  Buffer f32_noise_;
  size_t noise_begin_ = 0;
  std::vector<Buffer> buffers_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace sluice::bench
