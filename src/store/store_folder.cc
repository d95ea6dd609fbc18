// Directory lists with error codes: entries may disappear while a list is made.
#include "store/store_folder.h"

#include <algorithm>
#include <cerrno>
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
constexpr const char* kBadFolder = "bad";
constexpr std::string_view kMarkerText =
    "This directory is a KV store of Sluice, which removes stored blocks from it to keep to its\n"
    "limit. While this file is absent, it removes none.\n";

bool is_hex(std::string_view text, size_t size) {
  return text.size() == size && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// <key>.<16 digits>.part, behind the key.
bool is_part_suffix(std::string_view text) {
  return text.size() > 1 && text.front() == '.' && text.ends_with(".part") &&
         is_hex(text.substr(1, text.size() - 6), kFolderDigits);
}

const char* suffix_of(StoredKind kind) { return kind == StoredKind::kKv ? ".kv" : ".state"; }

// The kind of a file whose name ends like this behind the key.
std::optional<StoredKind> kind_of(std::string_view suffix) {
  for (const StoredKind kind : {StoredKind::kKv, StoredKind::kState}) {
    if (suffix == suffix_of(kind)) return kind;
  }
  return std::nullopt;
}

// <fingerprint, 16 digits>-<key>.kv or .state
bool is_bad_name(std::string_view name) {
  constexpr size_t kDigitsAt = kFolderDigits + 1, kSuffixAt = kDigitsAt + 64;
  return name.size() > kSuffixAt && is_hex(name.substr(0, kFolderDigits), kFolderDigits) &&
         name[kFolderDigits] == '-' && is_hex(name.substr(kDigitsAt, 64), 64) &&
         kind_of(name.substr(kSuffixAt));
}

// Walks a directory and sorts what it finds; whatever has no list is foreign.
class Lister {
 public:
  explicit Lister(const fs::path& dir) : dir_(dir) {}

  // 0, or why the directory cannot be read. A folder in it that cannot be, or that disappears
  // meanwhile, ends quietly.
  int list() {
    const OpenFolder root(dir_);
    if (root.error() != 0) return root.error();
    return root.for_each([&](const std::string& name) { visit_root(root, name); });
  }
  StoreListing& listing() { return listing_; }

 private:
  void visit_root(const OpenFolder& root, const std::string& name) {
    struct stat status {};
    if (name == "lock" || name == kStoreMarker) {
      if (root.look(name, &status) != 0) add_foreign(name);
    } else if (is_hex(name, kFolderDigits)) {
      visit_folder(root, name, "", [&](const OpenFolder& folder, const std::string& keys) {
        visit_keys(folder, name, keys);
      });
    } else if (name == kBadFolder) {
      visit_folder(root, name, "", [&](const OpenFolder& folder, const std::string& file) {
        if (!is_bad_name(file)) return add_foreign(fs::path(name) / file);
        add_file(folder, fs::path(name) / file, "", std::nullopt, &listing_.bad);
      });
    } else if (name != "lost+found") {
      add_foreign(name);
    }
  }

  void visit_keys(const OpenFolder& folder, const std::string& fingerprint,
                  const std::string& keys) {
    if (!is_hex(keys, 2)) return add_foreign(fs::path(fingerprint) / keys);
    visit_folder(folder, keys, fingerprint, [&](const OpenFolder& files, const std::string& name) {
      const fs::path inside = fs::path(fingerprint) / keys / name;
      const auto key = Digest::from_hex(std::string_view(name).substr(0, 64));
      const std::string suffix = key ? name.substr(64) : "";
      if (!key || !name.starts_with(keys)) return add_foreign(inside);
      if (suffix == ".kv") return add_file(files, inside, fingerprint, *key, &listing_.blocks);
      if (suffix == ".state") {
        return add_file(files, inside, fingerprint, *key, &listing_.states, StoredKind::kState);
      }
      if (!is_part_suffix(suffix)) return add_foreign(inside);
      add_file(files, inside, fingerprint, std::nullopt, &listing_.parts);
    });
  }

  // Calls visit(folder, name) for what is in a folder of `parent`, which is `inside` the directory.
  template <typename Visit>
  void visit_folder(const OpenFolder& parent, const std::string& name, const fs::path& inside,
                    Visit visit) {
    const OpenFolder folder = parent.open(name);
    if (folder.error() == ENOTDIR) add_foreign(inside / name);
    if (folder.error() != 0) return;
    folder.for_each([&](const std::string& entry) { visit(folder, entry); });
  }

  void add_file(const OpenFolder& folder, const fs::path& inside, const std::string& fingerprint,
                std::optional<Digest> key, std::vector<StoredFile>* files,
                StoredKind kind = StoredKind::kKv) {
    struct stat status {};
    const int error = folder.look(inside.filename(), &status);
    if (error == ELOOP || error == EINVAL) add_foreign(inside);
    if (error != 0) return;
    files->push_back(
        {.path = {dir_, inside},
         .folder = fingerprint,
         .key = {key.value_or(Digest{})},
         .num_bytes = static_cast<uint64_t>(status.st_size),
         .used_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
         .kind = kind});
  }

  void add_foreign(const fs::path& inside) {
    if (!listing_.foreign) listing_.foreign = dir_ / inside;
  }

  const fs::path& dir_;
  StoreListing listing_;
};

bool has_marker(const OpenFolder& root) {
  struct stat status {};
  return root.look(kStoreMarker, &status) == 0;
}

}  // namespace

// 256 folders for each fingerprint keep each of them small.
StorePath block_path(const fs::path& dir, const Fingerprint& fingerprint, const StoreKey& key,
                     StoredKind kind) {
  const std::string hex = key.hex();
  return {dir, fs::path(fingerprint.folder()) / hex.substr(0, 2) / (hex + suffix_of(kind))};
}

StorePath bad_path(const fs::path& dir, const Fingerprint& fingerprint, const StoreKey& key,
                   StoredKind kind) {
  return {dir, fs::path(kBadFolder) /
                   fmt::format("{}-{}{}", fingerprint.folder(), key.hex(), suffix_of(kind))};
}

// Random, since process ids of several machines on one directory are not unique.
StorePath temporary_path(const StorePath& block) {
  std::random_device source;
  const std::string suffix = fmt::format("{:08x}{:08x}.part", source(), source());
  return {block.dir, fs::path(block.inside).replace_extension(suffix)};
}

uint64_t StoreListing::num_bytes() const {
  uint64_t sum = 0;
  for (const auto* files : {&blocks, &states, &bad, &parts}) {
    for (const StoredFile& file : *files) sum += file.num_bytes;
  }
  return sum;
}

StoreListing list_store(const fs::path& dir) {
  Lister lister(dir);
  if (const int error = lister.list()) {
    fail(ErrorCode::kIo, "cannot read the KV store {}: {}; name a directory that you may read",
         dir.string(), std::strerror(error));
  }
  StoreListing listing = std::move(lister.listing());
  for (std::vector<StoredFile>* files : {&listing.blocks, &listing.states}) {
    std::sort(files->begin(), files->end(), [](const StoredFile& a, const StoredFile& b) {
      return std::tie(a.folder, a.key) < std::tie(b.folder, b.key);
    });
  }
  return listing;
}

// Of two processes that begin in an empty directory, either makes the file.
bool may_remove_from(const fs::path& dir) {
  const OpenFolder root(dir);
  if (root.error() != 0) return false;
  if (has_marker(root)) return true;
  Lister lister(dir);
  if (lister.list() != 0 || lister.listing().foreign) return false;
  const int fd = ::openat(root.fd(), kStoreMarker, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return has_marker(root);
  // The name counts; a full disk may keep the text back.
  if (::write(fd, kMarkerText.data(), kMarkerText.size()) < 0) errno = 0;
  ::close(fd);
  return true;
}

std::string missing_marker_text(const fs::path& dir) {
  Lister lister(dir);
  lister.list();  // a directory that cannot be read has no name to say
  const std::optional<fs::path>& foreign = lister.listing().foreign;
  return fmt::format(
      "{}there is no file {}; name a directory for the store alone, or make that file to have "
      "stored "
      "blocks removed",
      foreign ? fmt::format("{} is not the store's, and ", foreign->string()) : "",
      (dir / kStoreMarker).string());
}

// A block in the wrong place would never be found, and would be evicted as one that it is not.
std::string check_stored_file(StoreFiles& files, const StoredFile& file) {
  int fd = -1;
  uint64_t num_bytes = 0;
  if (const int error = files.open(file.path, &fd, &num_bytes)) return std::strerror(error);
  const StoreFile opened(files, fd);
  BlockReader reader(files, fd, num_bytes);
  if (std::string fault = reader.open(); !fault.empty()) return fault;
  const BlockPlace& place = reader.header().place;
  if (place.key != file.key) return "header: another key than the file's name";
  if (place.kind != file.kind) return "header: another kind than the file's name";
  if (reader.header().format.fingerprint.folder() != file.folder) {
    return "header: another fingerprint than the folder's";
  }
  return reader.check();
}

// Taking the lock for a moment cannot disturb the writer: it asks for its lock once, without
// waiting, and goes on without one.
bool is_abandoned(const StorePath& part) {
  const OpenFolder folder = OpenFolder::holding(part);
  if (folder.error() != 0) return false;
  const int fd = ::openat(folder.fd(), part.inside.filename().c_str(),
                          O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
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
                          .block_tokens = decoded.header->layout().block_tokens};
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
