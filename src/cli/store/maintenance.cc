// sluice store: list, verify and prune a directory of stored KV. Runs on the main thread; programs
// that use the directory may run meanwhile.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/terminal.h"
#include "cli/units.h"
#include "core/error.h"
#include "io/json_type.h"
#include "store/store_cleaner.h"
#include "store/store_folder.h"
#include "text/json_text.h"

namespace sluice::cli {
namespace {

// A wrong name is a matter of usage, while a store that fails later is not.
std::filesystem::path require_store(const std::string& dir) {
  std::error_code error;
  if (!std::filesystem::is_directory(dir, error)) {
    fail(ErrorCode::kInvalidArgument, "'{}' is no directory; name the one of --kv-store", dir);
  }
  return dir;
}

// The blocks of one fingerprint.
struct FolderSummary {
  int64_t num_blocks = 0;
  int64_t num_states = 0;      // of hybrid models
  int64_t num_tokens = 0;      // of all blocks with a readable header
  int64_t longest_tokens = 0;  // from position 0 to the end of the last block
  uint64_t num_bytes = 0;
  int64_t oldest_ns = 0, newest_ns = 0;  // times of use
};

// Adds a block's numbers; without a link, its header cannot be read, and its tokens are unknown.
void add_block(const StoredFile& file, const std::optional<BlockLink>& link,
               FolderSummary* folder) {
  folder->oldest_ns =
      folder->num_blocks == 0 ? file.used_ns : std::min(folder->oldest_ns, file.used_ns);
  folder->newest_ns = std::max(folder->newest_ns, file.used_ns);
  ++folder->num_blocks;
  folder->num_bytes += file.num_bytes;
  if (!link) return;
  folder->num_tokens += link->block_tokens;
  folder->longest_tokens =
      std::max(folder->longest_tokens, link->position + int64_t{link->block_tokens});
}

// Reads one header for each block.
std::map<std::string, FolderSummary> summarise(const StoreListing& listing) {
  StoreFiles files;
  LinkCache links(files);
  std::map<std::string, FolderSummary> folders;
  for (const StoredFile& file : listing.blocks) {
    if (interrupted()) throw Interrupted();
    add_block(file, links.find(file), &folders[file.folder]);
  }
  for (const StoredFile& file : listing.states) {
    FolderSummary& folder = folders[file.folder];
    ++folder.num_states;
    folder.num_bytes += file.num_bytes;
  }
  return folders;
}

uint64_t bytes_of(const std::vector<StoredFile>& files) {
  uint64_t sum = 0;
  for (const StoredFile& file : files) sum += file.num_bytes;
  return sum;
}

// "7 blocks", or "7 blocks, 2 states".
template <typename Count>
std::string count_text(Count num_blocks, Count num_states) {
  const std::string states = num_states > 0 ? fmt::format(", {} states", num_states) : "";
  return fmt::format("{} blocks{}", num_blocks, states);
}

// 0 for times of another machine whose clock is ahead.
double seconds_since(int64_t time_ns) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return std::max(0.0, static_cast<double>(now_ns - time_ns) * 1e-9);
}

std::string format_size(uint64_t num_bytes) { return format_bytes(static_cast<double>(num_bytes)); }

// For programs: units in the keys.
nlohmann::ordered_json listing_json(const StoreListing& listing,
                                    const std::map<std::string, FolderSummary>& folders) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [name, folder] : folders) {
    rows.push_back({{"fingerprint", name},
                    {"blocks", folder.num_blocks},
                    {"states", folder.num_states},
                    {"tokens", folder.num_tokens},
                    {"longest_tokens", folder.longest_tokens},
                    {"bytes", folder.num_bytes},
                    {"seconds_since_oldest_use", seconds_since(folder.oldest_ns)},
                    {"seconds_since_newest_use", seconds_since(folder.newest_ns)}});
  }
  return {{"bytes", listing.num_bytes()},
          {"fingerprints", std::move(rows)},
          {"bad_files", listing.bad.size()},
          {"bad_bytes", bytes_of(listing.bad)},
          {"unfinished_files", listing.parts.size()},
          {"unfinished_bytes", bytes_of(listing.parts)}};
}

// For people: one row for each fingerprint, then what prune would remove.
std::string listing_text(const StoreListing& listing,
                         const std::map<std::string, FolderSummary>& folders) {
  Table table(
      {"fingerprint", "blocks", "states", "tokens", "longest", "size", "last used", "first used"});
  for (const auto& [name, folder] : folders) {
    table.add({name, std::to_string(folder.num_blocks), std::to_string(folder.num_states),
               format_tokens(folder.num_tokens), format_tokens(folder.longest_tokens),
               format_size(folder.num_bytes),
               format_seconds(seconds_since(folder.newest_ns)) + " ago",
               format_seconds(seconds_since(folder.oldest_ns)) + " ago"});
  }
  std::string text = folders.empty() ? "no blocks\n" : table.to_string();
  if (!listing.bad.empty()) {
    text += fmt::format("{} bad files, {}; sluice store prune removes them\n", listing.bad.size(),
                        format_size(bytes_of(listing.bad)));
  }
  if (!listing.parts.empty()) {
    text += fmt::format("{} unfinished files, {}\n", listing.parts.size(),
                        format_size(bytes_of(listing.parts)));
  }
  return text;
}

struct DamagedFile {
  std::string path;
  std::string fault;
};

// Blocks and states.
std::vector<StoredFile> whole_files(const StoreListing& listing) {
  std::vector<StoredFile> files = listing.blocks;
  files.insert(files.end(), listing.states.begin(), listing.states.end());
  return files;
}

// Reads all of them. One that is evicted meanwhile is no damage.
std::vector<DamagedFile> check_files(const std::vector<StoredFile>& stored) {
  StoreFiles files;
  ProgressLine progress("checking stored KV");
  std::vector<DamagedFile> damaged;
  const double total = std::max(1.0, static_cast<double>(bytes_of(stored)));
  double done = 0;
  for (const StoredFile& file : stored) {
    if (interrupted()) throw Interrupted();
    progress.update(done / total);
    std::string fault = check_stored_file(files, file);
    uint64_t num_bytes = 0;
    if (!fault.empty() && files.look(file.path, &num_bytes) != ENOENT) {
      damaged.push_back({file.path.whole().string(), std::move(fault)});
    }
    done += static_cast<double>(file.num_bytes);
  }
  return damaged;
}

}  // namespace

// Reads headers alone.
int store_list(const StoreListCommand& command) {
  const StoreListing listing = list_store(require_store(command.dir));
  const std::map<std::string, FolderSummary> folders = summarise(listing);
  write_result(command.json ? json_text(listing_json(listing, folders), 1)
                            : listing_text(listing, folders));
  return kExitOk;
}

// Damaged files stay where they are: the next program that asks for one moves it away.
int store_verify(const StoreVerifyCommand& command) {
  const StoreListing listing = list_store(require_store(command.dir));
  const std::vector<StoredFile> stored = whole_files(listing);
  const std::vector<DamagedFile> damaged = check_files(stored);
  if (command.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const DamagedFile& file : damaged) {
      rows.push_back({{"path", file.path}, {"fault", file.fault}});
    }
    write_result(json_text({{"blocks", listing.blocks.size()},
                            {"states", listing.states.size()},
                            {"bytes", bytes_of(stored)},
                            {"damaged", std::move(rows)}},
                           1));
  } else {
    std::string text;
    for (const DamagedFile& file : damaged) text += fmt::format("{}: {}\n", file.path, file.fault);
    write_result(text + fmt::format("{}, {}: {} damaged\n",
                                    count_text(listing.blocks.size(), listing.states.size()),
                                    format_size(bytes_of(stored)), damaged.size()));
  }
  return damaged.empty() ? kExitOk : kExitFailure;
}

// Under the same lock as the eviction of running programs. The marker is asked for before the lock
// is made: a wrong directory gets no file.
int store_prune(const StorePruneCommand& command) {
  const std::filesystem::path dir = require_store(command.dir);
  if (!may_remove_from(dir)) {
    fail(ErrorCode::kInvalidArgument, "nothing is removed from '{}': {}", command.dir,
         missing_marker_text(dir));
  }
  StoreFiles files;
  LinkCache links(files);
  StoreLock lock(dir);
  if (!lock.try_lock()) {
    fail(ErrorCode::kIo, "{} is being pruned by another process; try again", dir.string());
  }
  const CleanResult result =
      clean_store(files, links,
                  {.dir = dir,
                   .max_bytes = command.max_bytes.value_or(std::numeric_limits<uint64_t>::max()),
                   .removes_all_bad = true});
  if (command.json) {
    write_result(json_text({{"removed_blocks", result.num_removed_blocks},
                            {"removed_states", result.num_removed_states},
                            {"removed_other_files", result.num_removed_others},
                            {"removed_bytes", result.removed_bytes},
                            {"bytes", result.left_bytes}},
                           1));
  } else {
    write_result(fmt::format("removed {} and {} other files, {}; {} left\n",
                             count_text(result.num_removed_blocks, result.num_removed_states),
                             result.num_removed_others, format_size(result.removed_bytes),
                             format_size(result.left_bytes)));
  }
  return kExitOk;
}

}  // namespace sluice::cli
