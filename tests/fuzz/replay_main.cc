// main() for fuzz targets in ordinary builds: runs every file of the directories given, and every
// prefix and a few damaged copies of each, since ordinary builds have no libFuzzer to make them.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "support/sanitizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

// Of one kind and file; keeps large files affordable.
constexpr size_t kMaxVariants = sluice::kSanitized ? 75 : 300;

// A copy in memory of its own, so that a sanitizer sees the first byte read past its end.
void run(const uint8_t* data, size_t size) {
  const Bytes exact(data, data + size);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void run_with_variants(const Bytes& file) {
  run(file.data(), file.size());
  const size_t step = std::max<size_t>(1, file.size() / kMaxVariants);
  const char* sample = std::getenv("SLUICE_TEST_SAMPLE");  // another one takes other positions
  const size_t first = sample == nullptr ? 0 : std::strtoull(sample, nullptr, 10) % step;
  for (size_t i = first; i < file.size(); i += step) run(file.data(), i);
  Bytes damaged = file;
  for (size_t i = first; i < file.size(); i += step) {
    for (const uint8_t byte : {uint8_t{0}, uint8_t{0xff}, uint8_t{'9'}, uint8_t{'"'}}) {
      damaged[i] = byte;
      run(damaged.data(), damaged.size());
    }
    damaged[i] = file[i];
  }
}

}  // namespace

int main(int argc, char** argv) {
  size_t num_files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream stream(entry.path(), std::ios::binary);
      run_with_variants(Bytes(std::istreambuf_iterator<char>(stream), {}));
      ++num_files;
    }
  }
  std::printf("replayed %zu files\n", num_files);
  return num_files > 0 ? 0 : 1;
}
