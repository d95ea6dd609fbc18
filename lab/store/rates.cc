// A write counts until fsync has returned for all files, on both sides: the store itself does not
// flush, and without it this would be a copy into the page cache.
#include "lab/store/rates.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/interrupt.h"
#include "core/error.h"
#include "store/block_store.h"
#include "store/store_reader.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kStoredLayers = 32;
constexpr int32_t kStoredTokens = 1024;
constexpr std::chrono::hours kNever{24};

void unless_interrupted() {
  if (interrupted()) throw Interrupted();
}

// Errors: kIo for anything but 0.
void require_ok(int error, const std::filesystem::path& path) {
  if (error == 0) return;
  fail(ErrorCode::kIo, "{}: {}; name a directory with more room", path.string(),
       error == kFileEnded ? "the file is shorter" : std::strerror(error));
}

double file_seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Opens a file and calls action(fd), which returns 0 or -1 and sets errno.
template <typename Action>
void with_file(const std::filesystem::path& path, Action action) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int error = fd >= 0 && action(fd) == 0 ? 0 : errno;
  if (fd >= 0) ::close(fd);
  require_ok(error, path);
}

// Waits until the bytes of all files are on the disk.
void flush(const std::vector<std::filesystem::path>& paths) {
  for (const auto& path : paths) with_file(path, [](int fd) { return ::fsync(fd); });
}

// The share of the bytes that the page cache still has after it was asked to drop them. Only clean
// pages go, and some file systems keep all.
double drop_from_cache(const std::vector<std::filesystem::path>& paths) {
  double num_pages = 0, num_cached = 0;
  for (const auto& path : paths) {
    with_file(path, [&](int fd) {
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      struct stat status {};
      if (::fstat(fd, &status) != 0) return -1;
      const auto size = static_cast<size_t>(status.st_size);
      void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
      if (mapped == MAP_FAILED) return -1;
      std::vector<unsigned char> pages(size / 4096 + 1);  // no page is smaller
      const int result = ::mincore(mapped, size, pages.data());
      ::munmap(mapped, size);
      const size_t count =
          (size + static_cast<size_t>(::getpagesize()) - 1) / static_cast<size_t>(::getpagesize());
      num_pages += static_cast<double>(count);
      for (size_t i = 0; i < count; ++i) num_cached += pages[i] & 1;
      return result;
    });
  }
  return num_cached / num_pages;
}

// Pieces of the size that the store's own calls have.
template <typename Bytes, typename Action>
int in_chunks(Bytes bytes, Action action) {
  for (uint64_t offset = 0; offset < bytes.size(); offset += kStoreChunkBytes) {
    const auto size = std::min<uint64_t>(kStoreChunkBytes, bytes.size() - offset);
    if (const int error = action(offset, bytes.subspan(offset, size))) return error;
  }
  return 0;
}

}  // namespace

StoreBenchFolder::StoreBenchFolder(const std::filesystem::path& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    fail(ErrorCode::kInvalidArgument, "'{}' is no directory; name one on the disk to measure",
         dir.string());
  }
  std::string pattern = (dir / "sluice-bench.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    fail(ErrorCode::kIo, "cannot write to {}: {}; name a directory that you may write",
         dir.string(), std::strerror(errno));
  }
  path_ = pattern;
}

StoreBenchFolder::~StoreBenchFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

StoreRates::StoreRates(const BenchStoreCommand& command, const std::filesystem::path& folder)
    : command_(command),
      folder_(folder),
      format_{.fingerprint = make_fingerprint({}),
              .layout = {.block_tokens = kStoredTokens,
                         .num_layers = kStoredLayers,
                         .layer_bytes = command.block_bytes / kStoredLayers}},
      tokens_(kStoredTokens),
      memory_(format_.layout.kv_bytes() * static_cast<size_t>(command.num_blocks)) {
  uint64_t state = 1;  // random, so that a disk that compresses gains nothing
  for (std::byte& byte : memory_) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

uint64_t StoreRates::bytes_per_pass() const { return memory_.size(); }

std::span<std::byte> StoreRates::block(int32_t index) {
  const auto bytes = static_cast<size_t>(format_.layout.kv_bytes());
  return std::span(memory_).subspan(static_cast<size_t>(index) * bytes, bytes);
}

std::vector<std::span<std::byte>> StoreRates::layers(int32_t index) {
  std::vector<std::span<std::byte>> layers;
  const auto bytes = static_cast<size_t>(format_.layout.layer_bytes);
  for (size_t i = 0; i < kStoredLayers; ++i)
    layers.push_back(block(index).subspan(i * bytes, bytes));
  return layers;
}

// Another salt for each block and pass, so that no block is stored already.
BlockPlace StoreRates::place(int32_t index) {
  const StoreKey root = root_key(format_.fingerprint, fmt::format("{}.{}", num_passes_, index));
  return {.key = next_key(root, tokens_), .parent = root, .position = 0};
}

// Both read twice: first what the disk has, then what this read left in the page cache.
PassRates StoreRates::plain_pass() {
  Paths paths;
  for (int32_t i = 0; i < command_.num_blocks; ++i) {
    paths.push_back(folder_ / fmt::format("plain.{}", i));
  }
  const auto bytes = static_cast<double>(bytes_per_pass());
  PassRates rates;
  rates.write = bytes / write_plain(paths);
  rates.cached_share = drop_from_cache(paths);
  rates.disk_read = bytes / read_plain(paths);
  rates.cache_read = bytes / read_plain(paths);
  for (const auto& path : paths) std::filesystem::remove(path);
  return rates;
}

PassRates StoreRates::store_pass() {
  ++num_passes_;
  Paths paths;
  for (int32_t i = 0; i < command_.num_blocks; ++i) {
    paths.push_back(block_path(folder_ / "store", format_.fingerprint, place(i).key).whole());
  }
  const auto bytes = static_cast<double>(bytes_per_pass());
  PassRates rates;
  rates.write = bytes / write_store(paths);
  rates.cached_share = drop_from_cache(paths);
  rates.disk_read = bytes / read_store();
  rates.cache_read = bytes / read_store();
  std::filesystem::remove_all(folder_ / "store");
  return rates;
}

// One thread, as the store has.
double StoreRates::write_plain(const Paths& paths) {
  StoreFiles files;
  const auto start = Clock::now();
  for (int32_t i = 0; i < command_.num_blocks; ++i) {
    unless_interrupted();
    const auto& path = paths[static_cast<size_t>(i)];
    int fd = -1;
    require_ok(files.create({path.parent_path(), path.filename()}, &fd), path);
    StoreFile file(files, fd);
    require_ok(in_chunks(block(i),
                         [&](uint64_t offset, std::span<const std::byte> chunk) {
                           return files.write(fd, offset, chunk);
                         }),
               path);
    require_ok(file.close(), path);
  }
  flush(paths);
  return file_seconds_since(start);
}

// The limit has room for all blocks, so nothing is evicted.
double StoreRates::write_store(const Paths& paths) {
  BlockStore store(
      {.dir = folder_ / "store", .max_bytes = 4 * bytes_per_pass(), .format = format_});
  const auto start = Clock::now();
  for (int32_t i = 0; i < command_.num_blocks; ++i) {
    unless_interrupted();
    const auto targets = layers(i);
    const std::vector<std::span<const std::byte>> sources(targets.begin(), targets.end());
    const auto result = store.write({.place = place(i), .tokens = tokens_, .layers = sources});
    if (result != WriteResult::kWritten) {
      fail(ErrorCode::kIo, "cannot write {}; name a directory with more room",
           paths[static_cast<size_t>(i)].string());
    }
  }
  flush(paths);
  return file_seconds_since(start);
}

// Threads take the next file when they have read one, as those of StoreReader do.
double StoreRates::read_plain(const Paths& paths) {
  unless_interrupted();
  StoreFiles files;
  std::atomic<int32_t> next = 0;
  std::atomic<int> first_error = 0;
  const auto read_blocks = [&] {
    for (int32_t i = next++; i < command_.num_blocks; i = next++) {
      int fd = -1;
      uint64_t num_bytes = 0;
      const auto& path = paths[static_cast<size_t>(i)];
      int error = files.open({path.parent_path(), path.filename()}, &fd, &num_bytes);
      const StoreFile file(files, fd);
      if (error == 0) {
        error = in_chunks(block(i), [&](uint64_t offset, std::span<std::byte> chunk) {
          return files.read(fd, offset, chunk);
        });
      }
      if (error != 0) first_error = error;
    }
  };
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < command_.num_readers; ++i) threads.emplace_back(read_blocks);
  for (std::thread& thread : threads) thread.join();
  const double seconds = file_seconds_since(start);
  require_ok(first_error, folder_);
  return seconds;
}

// Read-only, so that no time of use is written between the reads.
double StoreRates::read_store() {
  unless_interrupted();
  BlockStore store({.dir = folder_ / "store", .mode = StoreMode::kReadOnly, .format = format_});
  std::atomic<int32_t> num_hits = 0;
  StoreReader reader(store, command_.num_readers);
  const auto start = Clock::now();
  for (int32_t i = 0; i < command_.num_blocks; ++i) {
    reader.submit({.place = place(i),
                   .tokens = tokens_,
                   .layers = layers(i),
                   .on_done = [&](bool is_hit, auto) { num_hits += is_hit; }});
  }
  reader.wait(kNever);
  const double seconds = file_seconds_since(start);
  if (num_hits != command_.num_blocks) {
    fail(ErrorCode::kIo, "the store in {} found {} of {} blocks; check the disk", folder_.string(),
         num_hits.load(), command_.num_blocks);
  }
  return seconds;
}

}  // namespace sluice::lab
