// Listing, choosing and removing.
#include "store/store_cleaner.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace sluice {
namespace {

constexpr int kLockTries = 50;
constexpr std::chrono::milliseconds kLockPause{10};

// Removes a file and counts it. A file that another process has removed is gone, too.
class Remover {
 public:
  Remover(StoreFiles& files, CleanResult* result) : files_(files), result_(result) {}

  void remove(const StoredFile& file, int64_t* count) {
    const int error = files_.remove(file.path);
    if (error != 0 && error != ENOENT) return;
    result_->left_bytes -= file.num_bytes;
    if (error != 0) return;
    result_->removed_bytes += file.num_bytes;
    ++*count;
  }

 private:
  StoreFiles& files_;
  CleanResult* result_;
};

// Reads the headers of blocks that this process has not met; the others' links are remembered. The
// files follow each other as in the listing, blocks before states.
std::vector<EvictionCandidate> candidates_of(const StoreListing& listing, LinkCache& links,
                                             const PinnedBlocks* pinned) {
  std::vector<EvictionCandidate> candidates;
  const auto add = [&](const StoredFile& file, const std::optional<StoreKey>& parent) {
    candidates.push_back({.folder = file.folder,
                          .key = file.key,
                          .parent = parent,
                          .num_bytes = file.num_bytes,
                          .used_ns = file.used_ns,
                          .is_pinned = pinned != nullptr && file.folder == pinned->folder &&
                                       pinned->keys.contains(file.key),
                          .kind = file.kind});
  };
  for (const StoredFile& file : listing.blocks) {
    const std::optional<BlockLink> link = links.find(file);
    add(file, link ? std::optional(link->parent) : std::nullopt);
  }
  for (const StoredFile& file : listing.states) add(file, file.key);
  return candidates;
}

}  // namespace

// Whoever may write the directory may make this file, so it also tells whether that is so.
StoreLock::StoreLock(const std::filesystem::path& dir) {
  const OpenFolder root(dir);
  int error = root.error();
  struct stat status {};
  if (error == 0) {
    fd_ = ::openat(root.fd(), "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    error = fd_ < 0 || ::fstat(fd_, &status) != 0 ? errno : 0;
  }
  if (error == 0 && S_ISREG(status.st_mode)) return;
  if (fd_ >= 0) ::close(fd_);
  if (error == 0 || error == ELOOP || error == EISDIR) {
    fail(ErrorCode::kIo,
         "{} is no regular file, so the KV store cannot lock it; name another directory",
         (dir / "lock").string());
  }
  fail(
      ErrorCode::kIo,
      "cannot write to the KV store {}: {}; name a directory that you may write, or open the store "
      "read-only",
      dir.string(), std::strerror(error));
}

StoreLock::~StoreLock() { ::close(fd_); }

// Polls, since flock cannot wait for a limited time.
bool StoreLock::try_lock() {
  for (int i = 0; i < kLockTries; ++i) {
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    std::this_thread::sleep_for(kLockPause);
  }
  return false;
}

void StoreLock::unlock() { ::flock(fd_, LOCK_UN); }

// Files are removed by name: whoever has one open goes on reading it.
CleanResult clean_store(StoreFiles& files, LinkCache& links, const CleanRequest& request) {
  StoreListing listing = list_store(request.dir);
  links.trim(listing.blocks.size());
  CleanResult result{.left_bytes = listing.num_bytes(), .is_allowed = may_remove_from(request.dir)};
  if (!result.is_allowed) return result;
  Remover remover(files, &result);
  for (const StoredFile& part : listing.parts) {
    if (is_abandoned(part.path)) remover.remove(part, &result.num_removed_others);
  }
  const bool has_room = result.left_bytes <= request.max_bytes;
  const uint64_t goal = request.max_bytes - std::min(request.max_bytes, request.extra_bytes);
  std::sort(listing.bad.begin(), listing.bad.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.used_ns < b.used_ns; });
  for (const StoredFile& bad : listing.bad) {
    const bool is_needed = !has_room && result.left_bytes > goal;
    if (is_needed || request.removes_all_bad) remover.remove(bad, &result.num_removed_others);
  }
  if (has_room || result.left_bytes <= goal) return result;
  const std::vector<size_t> chosen = choose_evictions(candidates_of(listing, links, request.pinned),
                                                      result.left_bytes - goal, request.kept);
  for (const size_t i : chosen) {
    const bool is_block = i < listing.blocks.size();
    remover.remove(is_block ? listing.blocks[i] : listing.states[i - listing.blocks.size()],
                   is_block ? &result.num_removed_blocks : &result.num_removed_states);
  }
  return result;
}

}  // namespace sluice
