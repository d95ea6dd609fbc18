// Engines with a KV store in a directory of the test, on the CPU device.
//
// Used by the tests of engine/store. Thread rule: host thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/llm_engine.h"
#include "engine/scoped_engine.h"
#include "store/store_files.h"
#include "store/store_folder.h"
#include "support/run_bits.h"
#include "support/tiny_models.h"

namespace sluice::testing {

// A directory that ends with the test.
class TemporaryStore {
 public:
  TemporaryStore() {
    static int number = 0;
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("sluice-engine-store-{}-{}", ::getpid(), number++);
    std::filesystem::remove_all(path_);
  }
  ~TemporaryStore() { std::filesystem::remove_all(path_); }
  TemporaryStore(const TemporaryStore&) = delete;
  TemporaryStore& operator=(const TemporaryStore&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::vector<StoredFile> blocks() const { return list_store(path_).blocks; }

 private:
  std::filesystem::path path_;
};

inline constexpr int32_t kStoreBlock = 16;

// Blocks of 16 tokens; every prompt is written.
inline EngineOptions store_options(KvOffload mode) {
  EngineOptions options =
      mode == KvOffload::kOff ? scoped_resident() : scoped_offloaded(mode, kStoreBlock);
  if (mode != KvOffload::kLayerwise) options = in_chunks(options, 64, 128);
  options.kv_store.min_tokens = 0;
  return options;
}

inline EngineOptions with_store(EngineOptions options, const TemporaryStore& store) {
  options.kv_store.dir = store.path().string();
  return options;
}

inline std::unique_ptr<LlmEngine> make_store_engine(const EngineOptions& options,
                                                    StoreFiles* files = nullptr) {
  return std::make_unique<LlmEngine>(
      options, LlmEngine::Parts{.device = make_device(options.device, {.num_threads = 2}),
                                .store_files = files});
}

// Runs all jobs in an engine of their own, which writes everything before it ends.
inline std::vector<RequestOutput> run_with_store(const EngineOptions& options,
                                                 const std::vector<Job>& jobs,
                                                 StoreFiles* files = nullptr) {
  return run_jobs(*make_store_engine(options, files), jobs);
}

// Tokens of a prompt that can come from the store: whole blocks, but for the last token.
inline int64_t storable_tokens(int64_t prompt_tokens) {
  return (prompt_tokens - 1) / kStoreBlock * kStoreBlock;
}

inline int64_t sum_of_stored(const std::vector<RequestOutput>& outputs) {
  int64_t sum = 0;
  for (const RequestOutput& output : outputs) sum += output.num_stored_tokens;
  return sum;
}

}  // namespace sluice::testing
