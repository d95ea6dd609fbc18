// Measures bounds, and writes results of `sluice bench` in one form.
#include "cli/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "cli/terminal.h"
#include "core/dtype.h"
#include "core/error.h"
#include "device/device.h"
#include "device/host/memory_bandwidth.h"
#include "ops/matmul/matmul.h"
#include "text/build_info.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

// Large enough to reach the full rate; a larger product would only take longer.
constexpr int64_t kMatmulSize = 2048;
constexpr int64_t kGpuMatmulSize = 8192;
constexpr size_t kCopyBytes = size_t{256} << 20;  // far beyond the L2 cache of a GPU
constexpr int kRepeats = 5;
constexpr int kGpuCalls = 4;  // calls per measurement: the host's wait becomes a small part

// Operands of a square matrix product in device memory. The values are random: a GPU multiplies
// constants faster than typical values, and on a CPU NaN and denormal numbers can be slower.
class MatmulProblem {
 public:
  MatmulProblem(Device& device, Stream& stream, int64_t size)
      : size_(size),
        x_(device.allocate(num_bytes(), MemoryKind::kDevice)),
        out_(device.allocate(num_bytes(), MemoryKind::kDevice)),
        weight_(device.allocate(packed_weight_bytes(device, size, size), MemoryKind::kDevice)) {
    std::vector<BFloat16> values(static_cast<size_t>(size * size));
    // Uniform in [-1, 1) from 24 random bits.
    uint64_t state = 1;
    for (BFloat16& value : values) {
      state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
      value = BFloat16(static_cast<float>(state >> 40) * 0x1p-23f - 1);
    }
    const TensorView source(values.data(), DType::kBF16, {size, size});
    pack_weight(stream, {.src = source, .dst = args().weight});
    stream.copy({.dst = x_.data(), .src = source.bytes(), .num_bytes = num_bytes()});
    stream.synchronize();  // the copies read `values`, which ends with this scope
  }

  MatmulArgs args() const {
    return {.x = TensorView(x_.data(), DType::kBF16, {size_, size_}),
            .weight = {.data = weight_.data(), .num_rows = size_, .num_cols = size_},
            .bias = {},
            .out = TensorView(out_.data(), DType::kBF16, {size_, size_})};
  }

 private:
  size_t num_bytes() const { return static_cast<size_t>(size_ * size_) * sizeof(BFloat16); }

  int64_t size_;
  Buffer x_, out_, weight_;
};

// Seconds of one call of `enqueue`: the best of a few measurements after a warm-up. A bound is what
// the machine can do, so the best one counts.
template <typename Enqueue>
double best_seconds(Stream& stream, Enqueue&& enqueue) {
  const int num_calls = stream.device().kind() == DeviceKind::kCpu ? 1 : kGpuCalls;
  enqueue();
  stream.synchronize();
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < num_calls; ++call) enqueue();
    stream.synchronize();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count() / num_calls);
  }
  return best;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  SLUICE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  // Of an even number, the mean of both in the middle.
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {.median = median, .min = values.front(), .max = values.back()};
}

std::string format_spread(const Spread& spread) {
  const int digits = spread.median >= 100 ? 0 : spread.median >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", spread.median, digits, spread.min, digits,
                     spread.max, digits);
}

nlohmann::ordered_json spread_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

Bound measure_matmul_flops(const EngineOptions& engine) {
  const bool on_gpu = runs_on_gpu(engine);
  const int threads = resolve_threads(engine.num_threads);
  const int64_t size = on_gpu ? kGpuMatmulSize : kMatmulSize;
  const auto device = make_device(engine.device, {.num_threads = threads});
  const auto stream = device->make_stream({.name = "bench", .num_threads = threads});
  const MatmulProblem problem(*device, *stream, size);
  const double seconds = best_seconds(*stream, [&] { matmul(*stream, problem.args()); });
  const auto n = static_cast<double>(size);
  return {.name = on_gpu ? fmt::format("bf16 product of {0} x {0} x {0}", size)
                         : fmt::format("Sluice's own bf16 product of {0} x {0} x {0} with {1} "
                                       "threads",
                                       size, threads),
          .per_second = 2 * n * n * n / seconds};  // a multiply and an add per product
}

Bound measure_memory_rate(const EngineOptions& engine) {
  if (!runs_on_gpu(engine)) {
    const int threads = resolve_threads(engine.num_threads);
    return {.name = fmt::format("DRAM read rate with {} threads", threads),
            .per_second = measure_dram_read_bytes_per_second(threads)};
  }
  const auto device = make_device(engine.device);
  const auto stream = device->make_stream({.name = "bench"});
  const Buffer from = device->allocate(kCopyBytes, MemoryKind::kDevice);
  const Buffer to = device->allocate(kCopyBytes, MemoryKind::kDevice);
  stream->fill(from.data(), kCopyBytes, 1);
  const double seconds = best_seconds(*stream, [&] {
    stream->copy({.dst = to.data(), .src = from.data(), .num_bytes = kCopyBytes});
  });
  return {.name = "copy within device memory, read plus written",
          .per_second = 2 * static_cast<double>(kCopyBytes) / seconds};  // read and written
}

Bound larger(Bound a, const Bound& b) {
  a.per_second = std::max(a.per_second, b.per_second);
  return a;
}

std::string format_repeats(int32_t repeats) {
  return fmt::format("{} repeat{}", repeats, repeats == 1 ? "" : "s");
}

std::string describe_weights(const EngineOptions& engine) {
  return engine.load_format == LoadFormat::kDummy ? ", random weights" : "";
}

std::string describe_noise(double largest_share) {
  constexpr double kTolerance = 1.05;
  if (largest_share <= kTolerance) return "";
  return "shares above 100 %: the machine was busy while the bound was measured\n";
}

bool runs_on_gpu(const EngineOptions& engine) {
  return make_device(engine.device)->kind() != DeviceKind::kCpu;
}

int resolve_threads(std::optional<int32_t> num_threads) {
  return num_threads.value_or(static_cast<int32_t>(std::thread::hardware_concurrency()));
}

std::vector<int32_t> random_prompt(int64_t num_tokens, int32_t vocab_size, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens));
  uint64_t state = seed * 2 + 1;  // different seeds start different sequences
  for (int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    // The upper bits: the low bits of this generator have short periods.
    id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

void write_bench(bool json, nlohmann::ordered_json result, const std::string& machine,
                 const std::string& text) {
  if (json) {
    // A result without its machine and revision could not be compared with another.
    result["machine"] = machine;
    result["version"] = build_version();
    result["commit"] = build_commit();
    result["build"] = build_type();
    write_result(json_text(result, 1));
    return;
  }
  write_result(fmt::format("{}\nsluice {} ({}), {}\n\n{}", machine, build_version(), build_commit(),
                           build_type(), text));
}

}  // namespace sluice::cli
