// Copies of a device's streams: by size, by rows and by kind of memory, against one long copy.
//
//   copy_bench [DEVICE]        as in --device; "auto"
//
// The bound is the best of a few pinned copies of 1 GiB in the same direction. Thread rule: main
// thread.
#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"
#include "report.h"

namespace sluice::bench {
namespace {

constexpr size_t kPoolBytes = size_t{1} << 30;  // far larger than any cache
constexpr size_t kMiB = size_t{1} << 20;

struct Sides {
  const char* name;
  const Buffer* to;
  const Buffer* from;
};

// Bytes per second of copies of `num_bytes` each, at consecutive places of the buffers.
double copy_rate(Stream& stream, const Sides& sides, size_t num_bytes) {
  const size_t num_copies = std::min<size_t>(kPoolBytes / num_bytes, 4096);
  const Timing timing = measure(
      [&] {
        for (size_t i = 0; i < num_copies; ++i) {
          stream.copy({.dst = sides.to->data() + i * num_bytes,
                       .src = sides.from->data() + i * num_bytes,
                       .num_bytes = num_bytes});
        }
        stream.synchronize();
      },
      {.min_repetitions = 5, .min_seconds = 0.1});
  return static_cast<double>(num_copies * num_bytes) / timing.median;
}

// The same for strided copies of rows that are 16 times their width apart on the host.
double strided_rate(Stream& stream, const Sides& sides, size_t row_bytes) {
  const size_t num_rows = kPoolBytes / 16 / row_bytes;
  const Timing timing = measure(
      [&] {
        stream.copy_2d({.dst = sides.to->data(),
                        .dst_stride_bytes = row_bytes,
                        .src = sides.from->data(),
                        .src_stride_bytes = 16 * row_bytes,
                        .row_bytes = row_bytes,
                        .num_rows = num_rows});
        stream.synchronize();
      },
      {.min_repetitions = 5, .min_seconds = 0.1});
  return static_cast<double>(num_rows * row_bytes) / timing.median;
}

void print_rate(const char* name, const std::string& what, double rate, double bound) {
  fmt::print("{:<14} {:>16} {:>8.2f} GB/s {:>5.0f} % of one long copy\n", name, what, rate * 1e-9,
             100 * rate / bound);
}

void run(const std::string& spec) {
  const std::unique_ptr<Device> device = make_device(spec);
  fmt::print("device: {}\n", device->info().name);
  const Buffer on_device = device->allocate(kPoolBytes, MemoryKind::kDevice);
  const Buffer pinned = device->allocate(kPoolBytes, MemoryKind::kPinned);
  const Buffer pageable = device->allocate(kPoolBytes, MemoryKind::kHost);
  const std::unique_ptr<Stream> stream = device->make_stream({.name = "copies"});
  for (const Buffer* buffer : {&on_device, &pinned, &pageable}) {
    stream->fill(buffer->data(), kPoolBytes, 1);
  }
  stream->synchronize();
  const Sides h2d{"h2d pinned", &on_device, &pinned};
  const double bound = copy_rate(*stream, h2d, kPoolBytes);
  for (const Sides& sides : {h2d, Sides{"d2h pinned", &pinned, &on_device}}) {
    for (size_t num_bytes = 64 << 10; num_bytes <= 64 * kMiB; num_bytes *= 4) {
      print_rate(sides.name, fmt::format("{} KiB", num_bytes >> 10),
                 copy_rate(*stream, sides, num_bytes), bound);
    }
  }
  for (size_t row_bytes : {2 << 10, 8 << 10, 32 << 10}) {
    print_rate("h2d strided", fmt::format("{} KiB rows", row_bytes >> 10),
               strided_rate(*stream, h2d, row_bytes), bound);
  }
  print_rate("h2d pageable", "64 MiB", copy_rate(*stream, {"", &on_device, &pageable}, 64 * kMiB),
             bound);
  print_rate("d2h pageable", "64 MiB", copy_rate(*stream, {"", &pageable, &on_device}, 64 * kMiB),
             bound);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::print_header("copy_bench");
  sluice::bench::run(argc > 1 ? argv[1] : "auto");
}
