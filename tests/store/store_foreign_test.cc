// A directory with files of other programs: whatever the store does, they stay as they were. Only
// the store's own marker allows it to remove anything, and then only files with its own names.
#include <fstream>
#include <map>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/expect_error.h"
#include "io/temp_dir.h"
#include "store/store_rig.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kForeignTestBlock = 8192 + 3000;

// What one can see of a file, a link, a folder or a FIFO without following it.
struct Seen {
  mode_t mode = 0;
  int64_t modified_ns = 0;
  std::string content;  // of a file; the target of a link

  bool operator==(const Seen&) const = default;
};

Seen see(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return {};
  Seen seen = {
      .mode = status.st_mode,
      .modified_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
  if (S_ISREG(status.st_mode)) seen.content = slurp(path);
  if (S_ISLNK(status.st_mode)) seen.content = fs::read_symlink(path).string();
  if (S_ISDIR(status.st_mode)) seen.modified_ns = 0;  // the store makes files beside
  return seen;
}

// A store's directory, and one beside it to which links lead. Everything is old, so that it would
// be evicted first.
class ForeignFiles : public ::testing::Test {
 protected:
  BlockStoreOptions options(uint64_t num_blocks) {
    BlockStoreOptions options = test_options(dir());
    options.max_bytes = num_blocks * kForeignTestBlock;
    options.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
    return options;
  }
  fs::path dir() const { return root_.path() / "store"; }
  fs::path elsewhere() const { return root_.path() / "elsewhere"; }
  fs::path folder() const { return dir() / test_format().fingerprint.folder(); }

  void remember(const fs::path& path) { planted_[path] = see(path); }
  void plant_file(const fs::path& path, const std::string& text = "the user's") {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    const timespec old[2] = {{1000, 5}, {1000, 5}};
    ::utimensat(AT_FDCWD, path.c_str(), old, 0);
    remember(path);
  }
  void plant_link(const fs::path& path, const fs::path& target) {
    fs::create_directories(path.parent_path());
    fs::create_symlink(target, path);
    remember(path);
  }

  // Everything but a folder that the store has as well, in a folder of the directory.
  void plant_all(const fs::path& folder) {
    const std::string key = std::string(64, 'a');
    for (const std::string& name :
         {std::string("photo.jpg"), std::string(".hidden"), key, key + ".kv~", "x" + key + ".kv",
          key + ".part", key + ".0123.part", std::string("a.part"), key.substr(1) + ".kv",
          std::string("UPPER") + ".kv"}) {
      plant_file(folder / name);
    }
    plant_file(folder / "a folder" / (key + ".kv"));
    plant_link(folder / "to a file", elsewhere() / "kept.txt");
    plant_link(folder / "to a folder", elsewhere());
    plant_link(folder / "to nothing", elsewhere() / "none");
    ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
    remember(folder / "fifo");
  }

  // What the store would take for its own but for the place or the kind.
  void plant_everywhere() {
    const std::string key = std::string(64, 'a'), bad = std::string(16, '0') + "-" + key + ".kv";
    plant_file(elsewhere() / "kept.txt");
    plant_file(elsewhere() / (key + ".kv"));
    plant_file(elsewhere() / (key + ".0123456789abcdef.part"));
    plant_file(elsewhere() / bad);
    plant_file(elsewhere() / "aa" / (key + ".kv"));
    for (const fs::path& at : {dir(), folder(), folder() / "00", dir() / "bad"}) plant_all(at);
    plant_file(dir() / (key + ".kv"));
    plant_file(dir() / bad);
    plant_file(folder() / (key + ".kv"));
    plant_file(folder() / "00" / (key + ".kv"));  // not among the keys that begin with 00
    plant_file(dir() / "bad" / (key + ".kv"));
    plant_file(dir() / "bad" / "0123456789abcdef" / bad);
    // Links and others with names of the store.
    const std::string other = std::string(64, 'b');
    plant_link(folder() / "aa", elsewhere());
    plant_link(dir() / "0123456789abcdef", elsewhere());
    plant_file(dir() / "1123456789abcdef");
    plant_link(folder() / "bb" / (other + ".kv"), elsewhere() / "kept.txt");
    plant_link(folder() / "bb" / (other + ".0123456789abcdef.part"), elsewhere() / "kept.txt");
    plant_link(dir() / "bad" / bad, elsewhere() / bad);
    fs::create_directories(dir() / "bad" / (std::string(16, '1') + "-" + key + ".kv"));
    remember(dir() / "bad" / (std::string(16, '1') + "-" + key + ".kv"));
  }

  void expect_untouched(const std::string& what) {
    for (const auto& [path, seen] : planted_) {
      EXPECT_EQ(see(path), seen) << path << " after " << what;
    }
  }

  // Writes more than fits, with a bad file, twice.
  void use_store() {
    for (const uint32_t seed : {1, 2}) {
      BlockStore store(options(5));
      for (const TestBlock& block : make_chain(test_format(), seed, 8)) {
        write_test_block(store, block);
        read_test_block(store, block);
      }
      const auto last = list_store(dir()).blocks;
      ASSERT_FALSE(last.empty());
      fs::resize_file(last[0].path.whole(), 5000);
      for (const TestBlock& block : make_chain(test_format(), seed, 8)) {
        read_test_block(store, block);
        write_test_block(store, block);
      }
      evicted_ += store.stats().num_evicted;
    }
  }

  // As `sluice store prune --max-bytes 0` does.
  CleanResult prune() {
    StoreFiles files;
    LinkCache links(files);
    StoreLock lock(dir());
    EXPECT_TRUE(lock.try_lock());
    return clean_store(files, links, {.dir = dir(), .max_bytes = 0, .removes_all_bad = true});
  }
  void verify() {
    StoreFiles files;
    for (const StoredFile& file : list_store(dir()).blocks) check_stored_file(files, file);
  }

  const TempDir root_;
  std::map<fs::path, Seen> planted_;
  std::vector<std::string> warnings_;
  int64_t evicted_ = 0;
};

TEST_F(ForeignFiles, StayWhereTheMarkerAllowsEviction) {
  plant_everywhere();
  plant_file(dir() / kStoreMarker);
  use_store();
  expect_untouched("eviction and restarts");
  EXPECT_GT(evicted_, 0);
  verify();
  expect_untouched("verify");
  const CleanResult pruned = prune();
  EXPECT_TRUE(pruned.is_allowed);
  EXPECT_GT(pruned.num_removed_blocks, 0);
  EXPECT_EQ(pruned.left_bytes, 0u);
  expect_untouched("prune");
}

TEST_F(ForeignFiles, StayWithTheBlocksWhereThereIsNoMarker) {
  plant_everywhere();
  use_store();
  EXPECT_FALSE(fs::exists(dir() / kStoreMarker));
  EXPECT_EQ(evicted_, 0);
  const uint64_t num_bytes = list_store(dir()).num_bytes();
  EXPECT_GT(num_bytes, 0u) << "blocks are written";
  EXPECT_LE(num_bytes, 5 * kForeignTestBlock) << "but no more than fit";
  const CleanResult pruned = prune();
  EXPECT_FALSE(pruned.is_allowed);
  EXPECT_EQ(pruned.num_removed_blocks + pruned.num_removed_others, 0);
  EXPECT_EQ(list_store(dir()).num_bytes(), num_bytes);
  expect_untouched("all of it");
}

TEST_F(ForeignFiles, AFullDirectoryWithoutMarkerWarnsOnceAndGoesOnReading) {
  plant_file(dir() / "photo.jpg");
  const auto chain = make_chain(test_format(), 3, 8);
  BlockStore store(options(3));
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(write_test_block(store, chain[i]),
              i < 3 ? WriteResult::kWritten : WriteResult::kNoRoom);
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(read_test_block(store, chain[i]), ReadBack::kRight);
  ASSERT_EQ(warnings_.size(), 1u);
  for (const fs::path& named : {dir() / "photo.jpg", dir() / kStoreMarker}) {
    EXPECT_NE(warnings_[0].find(named.string()), std::string::npos) << warnings_[0];
  }
  // The remedy works while the store is open.
  std::ofstream(dir() / kStoreMarker).flush();
  const TestBlock other = make_chain(test_format(), 4, 1)[0];
  EXPECT_EQ(write_test_block(store, other), WriteResult::kWritten);
  EXPECT_GT(store.stats().num_evicted, 0);
  expect_untouched("eviction");
}

TEST_F(ForeignFiles, NewEmptyAndOlderDirectoriesGetTheMarker) {
  const auto expect_marked = [&](const char* what) {
    {
      BlockStore store(options(5));
      EXPECT_EQ(write_test_block(store, make_chain(test_format(), 5, 1)[0]), WriteResult::kWritten);
    }
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(dir() / kStoreMarker))) << what;
    fs::remove_all(dir());
  };
  expect_marked("new");
  fs::create_directories(dir());
  expect_marked("empty");
  fs::create_directories(dir() / "lost+found");
  expect_marked("a file system of its own");
  {
    BlockStore store(options(5));
    for (const TestBlock& block : make_chain(test_format(), 6, 2)) write_test_block(store, block);
    fs::resize_file(list_store(dir()).blocks[0].path.whole(), 5000);
    for (const TestBlock& block : make_chain(test_format(), 6, 2)) read_test_block(store, block);
    ASSERT_EQ(list_store(dir()).bad.size(), 1u);
  }
  std::ofstream(temporary_path(list_store(dir()).blocks[0].path).whole()) << "half a block";
  fs::remove(dir() / kStoreMarker);
  expect_marked("of a version without markers");
}

TEST_F(ForeignFiles, ReadOnlyMakesNoMarker) {
  fs::create_directories(dir());
  BlockStoreOptions read_only = options(5);
  read_only.mode = StoreMode::kReadOnly;
  BlockStore store(read_only);
  EXPECT_TRUE(fs::is_empty(dir()));
}

// Removed by hand while a server runs: what is made again is the store's alone.
TEST_F(ForeignFiles, ADirectoryThatIsMadeAgainGetsTheMarkerAgain) {
  BlockStore store(options(5));
  fs::remove_all(dir());
  EXPECT_EQ(write_test_block(store, make_chain(test_format(), 7, 1)[0]), WriteResult::kWritten);
  EXPECT_TRUE(fs::exists(dir() / kStoreMarker));
}

// Neither may be followed: a dangling link would make a file where it leads.
TEST_F(ForeignFiles, AMarkerOrLockThatIsALinkIsNone) {
  plant_link(dir() / kStoreMarker, elsewhere() / "marker");
  {
    BlockStore store(options(5));
    EXPECT_FALSE(may_remove_from(dir()));
  }
  fs::remove(dir() / "lock");
  plant_link(dir() / "lock", elsewhere() / "lock");
  EXPECT_TRUE(contains(expect_error(ErrorCode::kIo, [&] { BlockStore store(options(5)); }),
                       (dir() / "lock").string() + " is no regular file"));
  EXPECT_FALSE(fs::exists(elsewhere()));
  expect_untouched("opening");
}

// The directory itself is named by the user, and may be a link.
TEST_F(ForeignFiles, TheDirectoryMayBeALink) {
  fs::create_directories(elsewhere());
  fs::create_symlink(elsewhere(), dir());
  BlockStore store(options(2));
  for (const TestBlock& block : make_chain(test_format(), 8, 1)) {
    EXPECT_EQ(write_test_block(store, block), WriteResult::kWritten);
    EXPECT_EQ(read_test_block(store, block), ReadBack::kRight);
  }
  EXPECT_TRUE(fs::exists(elsewhere() / kStoreMarker));
}

}  // namespace
}  // namespace sluice
