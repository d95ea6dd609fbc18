// kernel_trace: when each kernel of a program began and ended, where kernels overlap.
//
//   CUDA_INJECTION64_PATH=.../libkernel_trace.so KERNEL_TRACE=FILE [KERNEL_TRACE_LAST=N] sluice ...
//
// A library that the CUDA driver loads into the program. Profilers run kernels one after the other,
// and leave out what matters in a decode step: kernels begin before the one before has ended, and
// wait. CUPTI's activity records have both times of each kernel, of graphs, too. At the end of the
// program FILE has the last N kernels (1000) in order of their start, in us: start, end, end less
// the latest end before it, blocks, threads and bytes of shared memory of a block, name; then for
// each kernel of these its number and medians. A decode step takes 12 to 16 % longer with records,
// most of it between steps.
// Thread rule: CUPTI calls from a thread of its own; what it hands over is kept under a lock.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <cupti.h>
#include <cxxabi.h>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;
constexpr size_t kMostNameChars = 100;

struct Kernel {
  uint64_t start_ns;
  uint64_t end_ns;
  std::string name;
  int num_blocks;
  int num_threads;
  int shared_bytes;
};

struct Trace {
  std::mutex mutex;
  std::vector<Kernel> kernels;
};

// Lives until the driver, which calls back at the end of the program, has gone, too.
Trace& trace() {
  static auto* const all = new Trace;
  return *all;
}

std::string readable(const char* name) {
  if (name == nullptr) return "?";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return std::string(status == 0 ? text.get() : name).substr(0, kMostNameChars);
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* num_bytes, size_t* max_records) {
  *num_bytes = kBufferBytes;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *max_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer,
                          size_t /*num_bytes*/, size_t num_valid_bytes) {
  const std::lock_guard lock(trace().mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, num_valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    trace().kernels.push_back(
        {.start_ns = kernel.start,
         .end_ns = kernel.end,
         .name = readable(kernel.name),
         .num_blocks = kernel.gridX * kernel.gridY * kernel.gridZ,
         .num_threads = kernel.blockX * kernel.blockY * kernel.blockZ,
         .shared_bytes = kernel.dynamicSharedMemory + kernel.staticSharedMemory});
  }
  std::free(buffer);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Times of the kernels of one name.
struct Times {
  std::vector<double> after_us;  // from the latest end before to the end
  std::vector<double> own_us;    // from the start to the end
};

void write_kernels(FILE* file, const std::vector<Kernel>& kernels) {
  std::map<std::string, Times> of_names;
  uint64_t latest_end = kernels.front().start_ns;
  const auto us_from = [](uint64_t from_ns, uint64_t to_ns) {
    return (static_cast<double>(to_ns) - static_cast<double>(from_ns)) * 1e-3;
  };
  std::fprintf(file, "start us     end us   after us  blocks threads  shared  kernel\n");
  for (const Kernel& kernel : kernels) {
    const double after = us_from(latest_end, kernel.end_ns);
    std::fprintf(file, "%8.2f %10.2f %10.2f %7d %7d %7d  %s\n",
                 us_from(kernels.front().start_ns, kernel.start_ns),
                 us_from(kernels.front().start_ns, kernel.end_ns), after, kernel.num_blocks,
                 kernel.num_threads, kernel.shared_bytes, kernel.name.c_str());
    Times& times = of_names[kernel.name];
    times.after_us.push_back(after);
    times.own_us.push_back(us_from(kernel.start_ns, kernel.end_ns));
    latest_end = std::max(latest_end, kernel.end_ns);
  }
  std::fprintf(file, "\nnumber   after us     own us  kernel (medians)\n");
  for (const auto& [name, times] : of_names) {
    std::fprintf(file, "%6zu %10.2f %10.2f  %s\n", times.own_us.size(), median(times.after_us),
                 median(times.own_us), name.c_str());
  }
}

size_t most_kernels() {
  const char* const text = std::getenv("KERNEL_TRACE_LAST");
  const unsigned long long number = text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
  return number > 0 ? number : 1000;
}

void write_trace() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(trace().mutex);
  std::vector<Kernel>& kernels = trace().kernels;
  const char* const path = std::getenv("KERNEL_TRACE");
  if (path == nullptr || kernels.empty()) {
    std::fprintf(stderr, "kernel_trace: %s\n",
                 path == nullptr ? "KERNEL_TRACE names no file" : "no kernel ran");
    return;
  }
  std::sort(kernels.begin(), kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.start_ns < b.start_ns; });
  const size_t num_dropped = kernels.size() - std::min(kernels.size(), most_kernels());
  kernels.erase(kernels.begin(), kernels.begin() + static_cast<std::ptrdiff_t>(num_dropped));
  FILE* const file = std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "kernel_trace: cannot write %s\n", path);
    return;
  }
  write_kernels(file, kernels);
  std::fclose(file);
}

bool succeeded(const char* what, CUptiResult result) {
  if (result == CUPTI_SUCCESS) return true;
  std::fprintf(stderr, "kernel_trace: %s: CUPTI's error %d\n", what, static_cast<int>(result));
  return false;
}

}  // namespace

// What the driver calls when it has loaded the library.
extern "C" int InitializeInjection() {
  if (succeeded("cuptiActivityRegisterCallbacks",
                cuptiActivityRegisterCallbacks(give_buffer, take_buffer)) &&
      succeeded("cuptiActivityEnable",
                cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL))) {
    std::atexit(write_trace);
  }
  return 1;
}
