// Directory lists with error codes: entries may disappear while a list is made.
#include "store/store_folder.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <tuple>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "store/block_file.h"
#include "store/block_reader.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFolderDigits = 16;

bool is_hex(const std::string& text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Calls visit(path) for the entries of a folder that is a directory, links not followed.
template <typename Visit>
void for_each_entry(const fs::path& folder, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    visit(at->path());
  }
}

// Size and last use of a regular file; empty for everything else.
std::optional<StoredFile> look_at(const fs::path& path, const std::string& folder) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return StoredFile{
      .path = path,
      .folder = folder,
      .key = {},
      .num_bytes = static_cast<uint64_t>(status.st_size),
      .used_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

// Sorts a file of a key's folder into its list.
void sort_in(const fs::path& path, const std::string& folder, StoreListing* listing) {
  const std::string name = path.filename().string();
  const auto key = Digest::from_hex(std::string_view(name).substr(0, 64));
  if (!key) return;
  const bool is_block = name.substr(64) == ".kv";
  if (!is_block && !name.ends_with(".part")) return;
  std::optional<StoredFile> file = look_at(path, folder);
  if (!file) return;
  if (is_block) file->key = {*key};
  (is_block ? listing->blocks : listing->parts).push_back(std::move(*file));
}

}  // namespace

// 256 folders for each fingerprint keep each of them small.
fs::path block_path(const fs::path& dir, const Fingerprint& fingerprint, const StoreKey& key) {
  const std::string hex = key.hex();
  return dir / fingerprint.folder() / hex.substr(0, 2) / (hex + ".kv");
}

fs::path bad_path(const fs::path& dir, const Fingerprint& fingerprint, const StoreKey& key) {
  return dir / "bad" / fmt::format("{}-{}.kv", fingerprint.folder(), key.hex());
}

// Random, since process ids of several machines on one directory are not unique.
fs::path temporary_path(const fs::path& block) {
  std::random_device source;
  return fs::path(block).replace_extension(fmt::format("{:08x}{:08x}.part", source(), source()));
}

uint64_t StoreListing::num_bytes() const {
  uint64_t sum = 0;
  for (const auto* files : {&blocks, &bad, &parts}) {
    for (const StoredFile& file : *files) sum += file.num_bytes;
  }
  return sum;
}

// Only the directory itself must be readable. A folder that disappears while it is listed ends
// quietly.
StoreListing list_store(const fs::path& dir) {
  std::error_code error;
  fs::directory_iterator readable(dir, error);
  if (error) {
    fail(ErrorCode::kIo, "cannot read the KV store {}: {}; name a directory that you may read",
         dir.string(), error.message());
  }
  StoreListing listing;
  for_each_entry(dir, [&](const fs::path& folder) {
    const std::string name = folder.filename().string();
    if (!is_hex(name, kFolderDigits)) return;
    for_each_entry(folder, [&](const fs::path& keys) {
      if (!is_hex(keys.filename().string(), 2)) return;
      for_each_entry(keys, [&](const fs::path& path) { sort_in(path, name, &listing); });
    });
  });
  for_each_entry(dir / "bad", [&](const fs::path& path) {
    if (auto file = look_at(path, "")) listing.bad.push_back(std::move(*file));
  });
  std::sort(listing.blocks.begin(), listing.blocks.end(),
            [](const StoredFile& a, const StoredFile& b) {
              return std::tie(a.folder, a.key) < std::tie(b.folder, b.key);
            });
  return listing;
}

// A block in the wrong place would never be found, and would be evicted as one that it is not.
std::string check_stored_file(StoreFiles& files, const StoredFile& file) {
  int fd = -1;
  uint64_t num_bytes = 0;
  if (const int error = files.open(file.path, &fd, &num_bytes)) return std::strerror(error);
  const StoreFile opened(files, fd);
  BlockReader reader(files, fd, num_bytes);
  if (std::string fault = reader.open(); !fault.empty()) return fault;
  if (reader.header().place.key != file.key) return "header: another key than the file's name";
  if (reader.header().format.fingerprint.folder() != file.folder) {
    return "header: another fingerprint than the folder's";
  }
  return reader.check();
}

// Taking the lock for a moment cannot disturb the writer: it asks for its lock once, without
// waiting, and goes on without one.
bool is_abandoned(const fs::path& part) {
  const int fd = ::open(part.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  const bool is_free = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  ::close(fd);
  return is_free;
}

// The file is read without the mutex, so two threads may read the same header.
std::optional<BlockLink> LinkCache::find(const StoredFile& file) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = links_.find({file.folder, file.key});
    if (found != links_.end()) return found->second;
  }
  int fd = -1;
  uint64_t num_bytes = 0;
  if (files_.open(file.path, &fd, &num_bytes) != 0) return std::nullopt;
  const StoreFile opened(files_, fd);
  HeaderBytes bytes;
  if (files_.read(fd, 0, bytes) != 0) return std::nullopt;
  const DecodedHeader decoded = decode_header(bytes);
  if (!decoded.header) return std::nullopt;
  const BlockLink link = {.parent = decoded.header->place.parent,
                          .position = decoded.header->place.position,
                          .block_tokens = decoded.header->format.layout.block_tokens};
  enter(file.folder, file.key, link);
  return link;
}

void LinkCache::enter(const std::string& folder, const StoreKey& key, const BlockLink& link) {
  const std::lock_guard lock(mutex_);
  links_.insert_or_assign({folder, key}, link);
}

void LinkCache::trim(size_t num_blocks) {
  const std::lock_guard lock(mutex_);
  if (links_.size() > 2 * num_blocks + 1024) links_.clear();
}

}  // namespace sluice
