// A queue of the blocks without stored children, oldest use first.
#include "store/eviction.h"

#include <functional>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

namespace sluice {
namespace {

using Name = std::pair<std::string, StoreKey>;
using Index = std::map<Name, size_t>;

constexpr size_t kNone = std::numeric_limits<size_t>::max();

// The index of each block's parent; kNone if it is not stored.
std::vector<size_t> parents_of(std::span<const EvictionCandidate> blocks, const Index& index) {
  std::vector<size_t> parents(blocks.size(), kNone);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].parent) continue;
    const auto found = index.find({blocks[i].folder, *blocks[i].parent});
    if (found != index.end()) parents[i] = found->second;
  }
  return parents;
}

// Counts the blocks of the kept chain as having a child too many, so they never join the queue.
void hold(const std::optional<KeptChain>& kept, const Index& index, std::span<const size_t> parents,
          std::vector<size_t>* num_children) {
  if (!kept) return;
  const auto found = index.find({kept->folder, kept->last});
  if (found == index.end()) return;
  // A chain of hashes has no cycle, and headers are checked against them.
  for (size_t at = found->second; at != kNone; at = parents[at]) ++(*num_children)[at];
}

}  // namespace

// A block joins the queue when its last stored child has gone, with its own time of use; so an old
// prefix may go right after its youngest extension, but never before.
std::vector<size_t> choose_evictions(std::span<const EvictionCandidate> blocks,
                                     uint64_t bytes_to_free, const std::optional<KeptChain>& kept) {
  Index index;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].kind == StoredKind::kKv) index.emplace(Name{blocks[i].folder, blocks[i].key}, i);
  }
  const std::vector<size_t> parents = parents_of(blocks, index);
  std::vector<size_t> num_children(blocks.size());
  for (const size_t parent : parents) {
    if (parent != kNone) ++num_children[parent];
  }
  hold(kept, index, parents, &num_children);

  using Leaf = std::tuple<bool, int64_t, size_t>;  // pinned, last use, index
  std::priority_queue<Leaf, std::vector<Leaf>, std::greater<>> leaves;
  const auto add_leaf = [&](size_t i) {
    const EvictionCandidate& block = blocks[i];
    leaves.emplace(block.parent && block.is_pinned,
                   block.parent ? block.used_ns : std::numeric_limits<int64_t>::min(), i);
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (num_children[i] == 0) add_leaf(i);
  }
  std::vector<size_t> chosen;
  for (uint64_t freed = 0; freed < bytes_to_free && !leaves.empty();) {
    const size_t i = std::get<size_t>(leaves.top());
    leaves.pop();
    chosen.push_back(i);
    freed += blocks[i].num_bytes;
    if (parents[i] != kNone && --num_children[parents[i]] == 0) add_leaf(parents[i]);
  }
  return chosen;
}

}  // namespace sluice
