// sluice store, on a directory that the library filled.
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "cli/bench_under_test.h"
#include "io/temp_dir.h"
#include "store/store_rig.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFileBytes = 8192 + 3000;

// Two documents of one fingerprint and one of another, used in this order.
struct FilledStore {
  FilledStore() {
    for (const char* model : {"first", "second"}) {
      // Times of use have the resolution of the file system.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      BlockStore store(test_options(dir.path(), test_format(model)));
      for (const uint32_t seed : {1, 2}) {
        if (seed == 2 && std::string(model) == "second") continue;
        for (const TestBlock& block : make_chain(store.format(), seed, seed == 1 ? 3 : 1)) {
          write_test_block(store, block);
        }
      }
    }
  }

  Words words(const std::string& command) const { return {"store", command, dir.path().string()}; }
  fs::path path(const char* model, uint32_t seed, size_t index) const {
    const StoreFormat format = test_format(model);
    return block_path(dir.path(), format.fingerprint, make_chain(format, seed, 3)[index].place.key)
        .whole();
  }

  TempDir dir;
};

TEST(StoreFromOutside, ListsEachFingerprint) {
  const FilledStore store;
  const Json json = json_of(store.words("list"));
  EXPECT_EQ(json.at("bytes"), 7 * kFileBytes);
  ASSERT_EQ(json.at("fingerprints").size(), 2u);
  for (const Json& row : json.at("fingerprints")) {
    const bool is_first = row.at("fingerprint") == test_format("first").fingerprint.folder();
    EXPECT_EQ(row.at("blocks"), is_first ? 4 : 3);
    EXPECT_EQ(row.at("tokens"), is_first ? 64 : 48);
    EXPECT_EQ(row.at("longest_tokens"), 48);
    EXPECT_EQ(row.at("bytes"), (is_first ? 4 : 3) * kFileBytes);
  }
  const Outcome text = run_sluice(store.words("list"));
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find(test_format("second").fingerprint.folder()), std::string::npos);
  const TempDir empty;
  EXPECT_EQ(run_sluice({"store", "list", empty.path().string()}).out, "no blocks\n");
}

TEST(StoreFromOutside, VerifyFindsDamage) {
  const FilledStore store;
  Outcome outcome = run_sluice(store.words("verify"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "7 blocks, 76.5 KiB: 0 damaged\n");
  const fs::path damaged = store.path("first", 1, 1);
  std::fstream(damaged, std::ios::in | std::ios::out).seekp(9000).put('x').put('y').put('z');
  outcome = run_sluice(store.words("verify"));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.out.find(damaged.string() + ": kv: its checksum does not agree\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_TRUE(fs::exists(damaged)) << "verify moves nothing";
}

// States of a hybrid, beside the blocks of its document.
TEST(StoreFromOutside, StatesAreCountedAndChecked) {
  const TempDir dir;
  StoreFormat format = test_format("hybrid");
  format.states = {.block_tokens = 16, .num_layers = 1, .layer_bytes = 3000};
  TestBlock states = make_chain(format, 1, 2)[1];
  {
    BlockStore store(test_options(dir.path(), format));
    for (const TestBlock& block : make_chain(format, 1, 2)) write_test_block(store, block);
    states.layout = format.states;
    states.place.kind = StoredKind::kState;
    write_test_block(store, states);
  }
  const std::string path = dir.path().string();
  EXPECT_EQ(json_of({"store", "list", path}).at("fingerprints")[0].at("states"), 1);
  EXPECT_EQ(run_sluice({"store", "verify", path}).out, "2 blocks, 1 states, 32.8 KiB: 0 damaged\n");
  const fs::path file =
      block_path(dir.path(), format.fingerprint, states.place.key, StoredKind::kState).whole();
  std::fstream(file, std::ios::in | std::ios::out).seekp(9000).put('x').put('y').put('z');
  EXPECT_EQ(run_sluice({"store", "verify", path}).exit_code, 1);
  const Json removed = json_of({"store", "prune", path, "--max-bytes", "23K"});
  EXPECT_EQ(removed.at("removed_states"), 1);
  EXPECT_EQ(removed.at("removed_blocks"), 0);
}

TEST(StoreFromOutside, PruneRemovesWhatIsAskedFor) {
  const FilledStore store;
  const fs::path block = store.path("second", 1, 0);
  std::ofstream(fs::path(block).replace_extension("0123456789abcdef.part")) << "half a block";
  const StoreFormat format = test_format("second");
  const fs::path bad = bad_path(store.dir.path(), format.fingerprint, {}).whole();
  fs::create_directory(bad.parent_path());
  fs::copy_file(block, bad);
  Json json = json_of(store.words("prune"));
  EXPECT_EQ(json.at("removed_blocks"), 0);
  EXPECT_EQ(json.at("removed_other_files"), 2);
  EXPECT_EQ(json.at("bytes"), 7 * kFileBytes);
  json = json_of(joined(store.words("prune"), {"--max-bytes", std::to_string(3 * kFileBytes)}));
  EXPECT_EQ(json.at("removed_blocks"), 4);
  EXPECT_EQ(json.at("bytes"), 3 * kFileBytes);
  EXPECT_TRUE(fs::exists(block)) << "a prefix that was used last";
  EXPECT_EQ(json_of(joined(store.words("prune"), {"--max-bytes", "0"})).at("bytes"), 0);
}

// The directory holds what is not the store's: it is named, nothing goes, and nothing is made.
TEST(StoreFromOutside, PruneNeedsTheMarkerWhereOthersHaveFiles) {
  const FilledStore store;
  const fs::path marker = store.dir.path() / kStoreMarker, photo = store.dir.path() / "bad/a.jpg";
  fs::remove(marker);
  fs::remove(store.dir.path() / "lock");
  fs::create_directory(photo.parent_path());
  std::ofstream(photo) << "a picture";
  const Words prune = joined(store.words("prune"), {"--max-bytes", "0"});
  const Outcome refused = run_sluice(prune);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find(photo.string()), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("make that file"), std::string::npos) << refused.err;
  EXPECT_FALSE(fs::exists(marker) || fs::exists(store.dir.path() / "lock"));
  EXPECT_EQ(json_of(store.words("list")).at("bytes"), 7 * kFileBytes);
  std::ofstream{marker};
  EXPECT_EQ(json_of(prune).at("bytes"), 0);
  EXPECT_EQ(slurp(photo), "a picture");
}

TEST(StoreFromOutside, RefusesWhatItCannotDo) {
  expect_usage_errors({
      {{"store", "list"}, "no directory given"},
      {{"store", "verify", "/nowhere/at/all"}, "'/nowhere/at/all' is no directory"},
      {{"store", "prune", "a", "b"}, "name one directory"},
      {{"store", "lst", "."}, "list"},
  });
}

}  // namespace
}  // namespace sluice::cli
