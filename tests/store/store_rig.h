// Blocks for tests of the store, whose KV follows from their key: whoever knows the key knows what
// a right read gives. And a file layer whose calls fail when they are told to.
//
// Thread rule: values; FaultyFiles may be used by many threads once it is set up.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "store/block_store.h"

namespace sluice {

// Layers that are no multiple of a sector, and tokens that fill no page.
inline constexpr StoreLayout kTestLayout = {
    .block_tokens = 16, .num_layers = 3, .layer_bytes = 1000};

inline StoreFormat test_format(const std::string& model = "test",
                               StoreLayout layout = kTestLayout) {
  return {.fingerprint = make_fingerprint({.model = {{"name", model}}}), .layout = layout};
}

inline std::vector<std::byte> bytes_from(const StoreKey& key, size_t size, uint64_t stream) {
  uint64_t seed = 0;
  std::memcpy(&seed, key.bytes.data(), sizeof seed);
  std::mt19937_64 random(seed + stream);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 255);
  return bytes;
}

struct TestBlock {
  StoreLayout layout;
  BlockPlace place;
  std::vector<int32_t> tokens;

  std::vector<std::byte> kv() const {
    return bytes_from(place.key, static_cast<size_t>(layout.kv_bytes()), 0);
  }
};

// Cuts memory of a block into layers.
template <typename Byte>
std::vector<std::span<Byte>> layers_of(std::span<Byte> kv, const StoreLayout& layout) {
  std::vector<std::span<Byte>> layers;
  const auto size = static_cast<size_t>(layout.layer_bytes);
  for (size_t at = 0; at < kv.size(); at += size) layers.push_back(kv.subspan(at, size));
  return layers;
}

// The blocks of a document whose tokens follow from `seed`; those of two seeds differ from the
// first block on.
inline std::vector<TestBlock> make_chain(const StoreFormat& format, uint32_t seed, int num_blocks) {
  std::mt19937 random(seed);
  std::vector<TestBlock> chain;
  StoreKey parent = root_key(format.fingerprint);
  for (int i = 0; i < num_blocks; ++i) {
    TestBlock block{.layout = format.layout, .place = {}, .tokens = {}};
    for (int t = 0; t < format.layout.block_tokens; ++t) {
      block.tokens.push_back(static_cast<int32_t>(random() >> 8));
    }
    block.place = {.key = next_key(parent, block.tokens),
                   .parent = parent,
                   .position = int64_t{i} * format.layout.block_tokens};
    parent = block.place.key;
    chain.push_back(std::move(block));
  }
  return chain;
}

inline WriteResult write_test_block(BlockStore& store, const TestBlock& block,
                                    std::span<const SummarySource> summaries = {}) {
  const std::vector<std::byte> kv = block.kv();
  const auto layers = layers_of(std::span<const std::byte>(kv), block.layout);
  return store.write(
      {.place = block.place, .tokens = block.tokens, .layers = layers, .summaries = summaries});
}

enum class ReadBack { kMiss, kRight, kWrong };

inline ReadBack read_test_block(BlockStore& store, const TestBlock& block) {
  std::vector<std::byte> kv(static_cast<size_t>(block.layout.kv_bytes()));
  const auto layers = layers_of(std::span(kv), block.layout);
  if (!store.read({.place = block.place, .tokens = block.tokens, .layers = layers})) {
    return ReadBack::kMiss;
  }
  return kv == block.kv() ? ReadBack::kRight : ReadBack::kWrong;
}

inline BlockStoreOptions test_options(const std::filesystem::path& dir,
                                      const StoreFormat& format = test_format()) {
  return {.dir = dir, .max_bytes = uint64_t{1} << 30, .format = format};
}

// Calls that fail. Each hook gets the number of that call, from 0 on, and returns 0 or the errno.
class FaultyFiles : public StoreFiles {
 public:
  using Hook = std::function<int(int64_t call)>;

  Hook on_read, on_write, on_create, on_close, on_rename, on_open;
  std::atomic<int64_t> num_changes = 0;  // calls that change the directory

  int open(const StorePath& path, int* fd, uint64_t* num_bytes) override {
    if (const int error = ask(on_open, &num_opens_)) return error;
    return StoreFiles::open(path, fd, num_bytes);
  }
  int create(const StorePath& path, int* fd) override {
    ++num_changes;
    if (const int error = ask(on_create, &num_creates_)) return error;
    return StoreFiles::create(path, fd);
  }
  int read(int fd, uint64_t offset, std::span<std::byte> dst) override {
    if (const int error = ask(on_read, &num_reads_)) return error;
    return StoreFiles::read(fd, offset, dst);
  }
  // A full disk takes a part of the bytes first.
  int write(int fd, uint64_t offset, std::span<const std::byte> src) override {
    ++num_changes;
    const int error = ask(on_write, &num_writes_);
    const int written = StoreFiles::write(fd, offset, error == 0 ? src : src.first(src.size() / 2));
    return error != 0 ? error : written;
  }
  int touch(int fd) override {
    ++num_changes;
    return StoreFiles::touch(fd);
  }
  int close(int fd) override {
    const int error = ask(on_close, &num_closes_);
    const int closed = StoreFiles::close(fd);
    return error != 0 ? error : closed;
  }
  int rename(const StorePath& from, const StorePath& to) override {
    ++num_changes;
    if (const int error = ask(on_rename, &num_renames_)) return error;
    return StoreFiles::rename(from, to);
  }
  int remove(const StorePath& path) override {
    ++num_changes;
    return StoreFiles::remove(path);
  }
  int make_folder(const StorePath& path) override {
    ++num_changes;
    return StoreFiles::make_folder(path);
  }

 private:
  using Count = std::atomic<int64_t>;
  static int ask(const Hook& hook, Count* count) {
    const int64_t call = (*count)++;
    return hook ? hook(call) : 0;
  }

  Count num_reads_ = 0, num_writes_ = 0, num_creates_ = 0, num_closes_ = 0, num_renames_ = 0,
        num_opens_ = 0;
};

}  // namespace sluice
