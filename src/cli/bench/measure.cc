// Measurements and bounds of `sluice bench`.
#include "cli/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "cli/build_info.h"
#include "cli/json_text.h"
#include "cli/terminal.h"
#include "core/dtype.h"
#include "core/error.h"
#include "device/device.h"
#include "ops/matmul.h"

namespace sluice::cli {
namespace {

constexpr int64_t kMatmulSize = 2048;
constexpr int kMatmulRepeats = 5;

}  // namespace

Spread spread_of(std::vector<double> values) {
  SLUICE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return {.median = values[values.size() / 2], .min = values.front(), .max = values.back()};
}

std::string format_spread(const Spread& spread) {
  const int digits = spread.median >= 100 ? 0 : spread.median >= 10 ? 1 : 2;
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", spread.median, digits, spread.min, digits,
                     spread.max, digits);
}

nlohmann::ordered_json spread_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

double measure_matmul_flops(int num_threads) {
  constexpr auto kNumElements = static_cast<size_t>(kMatmulSize * kMatmulSize);
  const auto device = make_device("cpu", {.num_threads = num_threads});
  const auto stream = device->make_stream({.name = "bench", .num_threads = num_threads});
  // Ordinary values: a product of NaN or denormal numbers can run at another speed.
  const std::vector<BFloat16> ones(kNumElements, BFloat16(0.5f));
  const size_t num_bytes = kNumElements * sizeof(BFloat16);
  const Buffer x = device->allocate(num_bytes, MemoryKind::kDevice);
  const Buffer out = device->allocate(num_bytes, MemoryKind::kDevice);
  const Buffer packed =
      device->allocate(packed_weight_bytes(*device, kMatmulSize, kMatmulSize), MemoryKind::kDevice);
  const PackedWeight weight{
      .data = packed.data(), .num_rows = kMatmulSize, .num_cols = kMatmulSize};
  void* values = const_cast<BFloat16*>(ones.data());
  const TensorView source(values, DType::kBF16, {kMatmulSize, kMatmulSize});
  pack_weight(*stream, {.src = source, .dst = weight});
  stream->copy({.dst = x.data(), .src = source.bytes(), .num_bytes = num_bytes});
  const MatmulArgs args{.x = TensorView(x.data(), DType::kBF16, {kMatmulSize, kMatmulSize}),
                        .weight = weight,
                        .bias = {},
                        .out = TensorView(out.data(), DType::kBF16, {kMatmulSize, kMatmulSize})};
  matmul(*stream, args);
  stream->synchronize();
  double best_seconds = 1e30;
  for (int i = 0; i < kMatmulRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    matmul(*stream, args);
    stream->synchronize();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best_seconds = std::min(best_seconds, taken.count());
  }
  const auto size = static_cast<double>(kMatmulSize);
  return 2 * size * size * size / best_seconds;
}

int resolve_threads(int32_t num_threads) {
  return num_threads > 0 ? num_threads : static_cast<int>(std::thread::hardware_concurrency());
}

std::vector<int32_t> random_prompt(int64_t num_tokens, int32_t vocab_size, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens));
  uint64_t state = seed * 2 + 1;
  for (int32_t& id : ids) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    id = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab_size));
  }
  return ids;
}

void write_bench(bool json, nlohmann::ordered_json result, const std::string& machine,
                 const std::string& text) {
  if (json) {
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
