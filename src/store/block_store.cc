// One file for each block; the directory is the index.
#include "store/block_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// A process lists the directory after it has written this share of the limit, and then evicts as
// much more than it needs.
constexpr uint64_t kListingShare = 16;

StoreFiles& system_files() {
  static StoreFiles files;
  return files;
}

// The time of one transfer, for RateMeter.
class TimedTransfer {
 public:
  explicit TimedTransfer(RateMeter& meter) : meter_(meter) { meter_.begin(Clock::now()); }
  ~TimedTransfer() { meter_.end(Clock::now(), num_bytes_); }
  TimedTransfer(const TimedTransfer&) = delete;
  TimedTransfer& operator=(const TimedTransfer&) = delete;

  void set_bytes(uint64_t num_bytes) { num_bytes_ = num_bytes; }

 private:
  RateMeter& meter_;
  uint64_t num_bytes_ = 0;
};

// Errors of opening that say that the file cannot be a block, or that the disk cannot read it.
// Others (none there, too many open files, no permission) are not the file's fault.
bool blames_file(int error) {
  constexpr std::array kFaults = {EIO, EINVAL, ELOOP, EISDIR, ENXIO};
  return std::find(kFaults.begin(), kFaults.end(), error) != kFaults.end();
}

// Errors of StoreFiles::look for what is there, but is no file.
bool is_foreign(int error) { return error == ELOOP || error == EINVAL; }

// Errors of writing that may be gone with the next block, or that only this block's name has.
bool is_passing(int error) {
  constexpr std::array kPassing = {EMFILE, ENFILE,  ENOMEM, EINTR,  EAGAIN,
                                   ENOENT, ENOTDIR, EEXIST, EISDIR, ESTALE};
  return std::find(kPassing.begin(), kPassing.end(), error) != kPassing.end();
}

// Of all parts together.
template <typename Parts>
size_t bytes_of(const Parts& parts) {
  size_t sum = 0;
  for (const auto& part : parts) sum += part.size();
  return sum;
}

}  // namespace

BlockStore::BlockStore(BlockStoreOptions options)
    : BlockStore(std::move(options), system_files()) {}

// A read-only store needs no limit, no lock and no list: it only has to exist.
BlockStore::BlockStore(BlockStoreOptions options, StoreFiles& files)
    : options_(std::move(options)), files_(files), links_(files) {
  validate_layout(options_.format.layout);
  if (options_.format.states.num_layers > 0) validate_layout(options_.format.states);
  if (options_.mode == StoreMode::kReadWrite) {
    open_for_writing();
  } else {
    list_store(options_.dir);  // throws if there is none
  }
}

// The first cleaning also counts the bytes that are there, and removes what killed writers left.
void BlockStore::open_for_writing() {
  const uint64_t least = make_header(options_.format, {}).file_bytes();
  if (options_.max_bytes < least) {
    fail(ErrorCode::kInvalidArgument,
         "a KV store of {} bytes cannot hold a block, which has {}; raise its size",
         options_.max_bytes, least);
  }
  make_root();  // a failure is reported by the lock
  lock_.emplace(options_.dir);
  is_writing_ = true;
  const std::lock_guard room(room_mutex_);
  clean(0, {});
}

// The marker comes before everything else, while the directory is empty.
void BlockStore::make_root() {
  if (files_.make_folder({options_.dir, {}}) == 0) may_remove_from(options_.dir);
}

StorePath BlockStore::path_of(const BlockPlace& place) const {
  return block_path(options_.dir, options_.format.fingerprint, place.key, place.kind);
}

void BlockStore::check_sizes(StoredKind kind, size_t num_tokens, size_t num_bytes) const {
  const StoreLayout& layout = options_.format.layout_of(kind);
  SLUICE_CHECK(
      num_tokens == static_cast<size_t>(layout.block_tokens) && num_bytes == layout.kv_bytes(),
      "a stored block with {} tokens and {} bytes", num_tokens, num_bytes);
}

// The file system is asked each time, since other processes write and evict.
bool BlockStore::contains(const StoreKey& key, StoredKind kind) {
  uint64_t num_bytes = 0;
  return !is_known_bad(key, kind) &&
         files_.look(path_of({.key = key, .parent = {}, .kind = kind}), &num_bytes) == 0;
}

// No lock is held while bytes move, so reads and writes of many threads run at once.
bool BlockStore::read(const BlockTarget& target) {
  check_sizes(target.place.kind, target.tokens.size(), bytes_of(target.layers));
  int fd = -1;
  uint64_t num_bytes = 0;
  const bool is_bad = is_known_bad(target.place.key, target.place.kind);
  const int error = is_bad ? ENOENT : files_.open(path_of(target.place), &fd, &num_bytes);
  StoreFile file(files_, fd);
  std::string fault;
  if (error != 0 && blames_file(error)) fault = std::strerror(error);
  const bool is_hit = error == 0 && read_checked(file, num_bytes, target, &fault);
  if (!fault.empty()) set_aside(target.place, fault);
  // The time of use is a hint: a failure to set it changes the order of eviction alone.
  if (is_hit && options_.mode == StoreMode::kReadWrite) files_.touch(fd);
  const std::lock_guard lock(mutex_);
  const bool is_block = target.place.kind == StoredKind::kKv;
  if (is_block) ++(is_hit ? stats_.num_hits : stats_.num_misses);
  if (!is_block && is_hit) ++stats_.num_states_read;
  if (is_hit) stats_.read_bytes += num_bytes;
  return is_hit;
}

// A fault is for set_aside; its time counts in the rate without bytes, as time that was lost.
bool BlockStore::read_checked(StoreFile& file, uint64_t num_bytes, const BlockTarget& target,
                              std::string* fault) {
  TimedTransfer timed(read_rate_);
  BlockReader reader(files_, file.fd(), num_bytes);
  *fault = reader.open();
  if (fault->empty()) *fault = reader.compare(options_.format, target.place, target.tokens);
  if (fault->empty()) *fault = reader.read(target.layers, target.summaries);
  if (!fault->empty()) return false;
  timed.set_bytes(num_bytes);
  return true;
}

// Another process may have moved or evicted the file meanwhile, which is as good. What is no
// regular file is not the store's, and stays.
void BlockStore::set_aside(const BlockPlace& place, const std::string& fault) {
  bool is_moved = false;
  if (options_.mode == StoreMode::kReadWrite) {
    const StorePath bad =
        bad_path(options_.dir, options_.format.fingerprint, place.key, place.kind);
    const bool has_folder = files_.make_folder({bad.dir, bad.inside.parent_path()}) == 0;
    const int error = has_folder ? files_.rename(path_of(place), bad) : 0;
    is_moved = has_folder && (error == 0 || error == ENOENT);
  }
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = stats_.num_bad++ == 0;
    if (!is_moved) bad_files_.emplace(place.key, place.kind);
  }
  if (!is_first) return;
  warn(
      fmt::format("KV store: {}: {}; its tokens are computed instead, and further bad files are "
                  "only counted",
                  path_of(place).whole().string(), fault));
}

bool BlockStore::is_known_bad(const StoreKey& key, StoredKind kind) {
  const std::lock_guard lock(mutex_);
  return bad_files_.contains({key, kind});
}

// Two processes that miss the same block both write it; the second rename replaces equal bytes.
WriteResult BlockStore::write(const BlockSource& source) {
  const BlockPlace& place = source.place;
  check_sizes(place.kind, source.tokens.size(), bytes_of(source.layers));
  if (!is_writing_) return WriteResult::kOff;
  uint64_t num_bytes = 0;
  const int found = files_.look(path_of(place), &num_bytes);
  if (found == 0 && !is_known_bad(place.key, place.kind)) return count(WriteResult::kPresent);
  if (is_foreign(found)) return fail_write(place, EEXIST);
  num_bytes = block_file_bytes(options_.format, source);
  if (!make_room(num_bytes, place)) return count(WriteResult::kNoRoom);
  int error = 0;
  {
    TimedTransfer timed(write_rate_);
    error = write_file(source);
    if (error == 0) timed.set_bytes(num_bytes);
  }
  return finish_write(error, source, num_bytes);
}

// Folders are made when they are missing: the first time, and after they were removed.
int BlockStore::write_file(const BlockSource& source) {
  const StorePath path = path_of(source.place);
  const int error = write_block(files_, options_.format, source, temporary_path(path), path);
  if (error != ENOENT) return error;
  if (OpenFolder(path.dir).error() == ENOENT) make_root();
  if (const int failed = files_.make_folder({path.dir, path.inside.parent_path()})) return failed;
  return write_block(files_, options_.format, source, temporary_path(path), path);
}

// A block that failed gives its room back. Its link is known without reading the file again.
WriteResult BlockStore::finish_write(int error, const BlockSource& source, uint64_t num_bytes) {
  const BlockPlace& place = source.place;
  if (error != 0) {
    const std::lock_guard room(room_mutex_);
    known_bytes_ -= std::min(known_bytes_, num_bytes);
  }
  if (error != 0) return fail_write(place, error);
  const bool is_block = place.kind == StoredKind::kKv;
  if (is_block) {
    links_.enter(options_.format.fingerprint.folder(), place.key,
                 {.parent = place.parent,
                  .position = place.position,
                  .block_tokens = options_.format.layout.block_tokens});
  }
  const std::lock_guard lock(mutex_);
  bad_files_.erase({place.key, place.kind});  // the rename has replaced the bad file
  ++(is_block ? stats_.num_written : stats_.num_states_written);
  stats_.written_bytes += num_bytes;
  return WriteResult::kWritten;
}

// Of several threads whose fault turns writing off at once, one warns.
WriteResult BlockStore::fail_write(const BlockPlace& place, int error) {
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    is_first = stats_.num_failed++ == 0;
  }
  const bool goes_on = is_passing(error);
  if (goes_on ? is_first : is_writing_.exchange(false)) {
    warn(fmt::format("KV store: cannot write {}: {}; {}", path_of(place).whole().string(),
                     std::strerror(error),
                     goes_on ? "the block is skipped, and further ones are only counted"
                             : "blocks are read, but no more are written until the program starts "
                               "again"));
  }
  return WriteResult::kFailed;
}

// Writes that end before a file is made.
WriteResult BlockStore::count(WriteResult result) {
  const std::lock_guard lock(mutex_);
  ++(result == WriteResult::kPresent ? stats_.num_present : stats_.num_no_room);
  return result;
}

// Reserves bytes for a file that is about to be written. No request finds a block whose parent is
// not stored, nor states whose block is not, so these take what is free, and evict nothing.
bool BlockStore::make_room(uint64_t num_bytes, const BlockPlace& place) {
  const std::lock_guard room(room_mutex_);
  const auto has_room = [&] {
    return num_bytes <= options_.max_bytes && known_bytes_ <= options_.max_bytes - num_bytes;
  };
  const bool is_listing_old = bytes_since_listing_ >= options_.max_bytes / kListingShare;
  const bool is_block = place.kind == StoredKind::kKv;
  const StoreKey& last_kept = is_block ? place.parent : place.key;
  const bool may_evict = (is_block && place.position == 0) || contains(last_kept);
  const bool may_remove =
      !may_evict || (has_room() && !is_listing_old) || clean(num_bytes, last_kept);
  if (!has_room() && !may_remove) warn_of_missing_marker();
  if (!has_room()) return false;
  known_bytes_ += num_bytes;
  bytes_since_listing_ += num_bytes;
  return true;
}

void BlockStore::set_pinned(std::set<StoreKey> keys) {
  auto pinned = std::make_shared<const PinnedBlocks>(
      PinnedBlocks{.folder = options_.format.fingerprint.folder(), .keys = std::move(keys)});
  const std::lock_guard lock(mutex_);
  pinned_ = std::move(pinned);
}

std::shared_ptr<const PinnedBlocks> BlockStore::pinned() const {
  const std::lock_guard lock(mutex_);
  return pinned_;
}

// Lists the directory and evicts until `num_bytes` more fit. Changes nothing while another process
// evicts. False if files may not be removed from the directory. REQUIRES: room_mutex_ is held.
bool BlockStore::clean(uint64_t num_bytes, const StoreKey& last_kept) {
  if (num_bytes > options_.max_bytes) return true;
  std::unique_lock<StoreLock> lock_of_dir(*lock_, std::try_to_lock);
  if (!lock_of_dir) return true;
  const std::shared_ptr<const PinnedBlocks> pinned = this->pinned();
  CleanResult result;
  try {
    result = clean_store(files_, links_,
                         {.dir = options_.dir,
                          .max_bytes = options_.max_bytes - num_bytes,
                          .extra_bytes = options_.max_bytes / kListingShare,
                          .kept = KeptChain{options_.format.fingerprint.folder(), last_kept},
                          .pinned = pinned.get()});
  } catch (const Error&) {  // the directory was removed: write_file makes it again
  }
  lock_of_dir.unlock();
  known_bytes_ = result.left_bytes;
  bytes_since_listing_ = 0;
  const std::lock_guard lock(mutex_);
  stats_.num_evicted += result.num_removed_blocks;
  return result.is_allowed;
}

// Once: the directory is asked again before each block.
void BlockStore::warn_of_missing_marker() {
  if (has_warned_of_marker_.exchange(true)) return;
  warn(
      fmt::format("KV store: {} is full ({} bytes), and nothing is removed from it: {}; stored "
                  "blocks are read, and no more are written",
                  options_.dir.string(), options_.max_bytes, missing_marker_text(options_.dir)));
}

void BlockStore::warn(const std::string& text) const {
  if (options_.on_warning) options_.on_warning(text);
}

StoreStats BlockStore::stats() const {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  StoreStats stats = stats_;
  stats.is_writing = is_writing_;
  stats.read_bytes_per_second = read_rate_.bytes_per_second(now);
  stats.write_bytes_per_second = write_rate_.bytes_per_second(now);
  return stats;
}

}  // namespace sluice
