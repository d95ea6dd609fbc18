// Hash tables for vocabulary and merges, and the two algorithms that merge a piece.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

// Pieces up to this length are merged by a quadratic scan on the stack, which is faster for words;
// longer ones by a queue.
constexpr size_t kShortPieceBytes = 128;
constexpr uint32_t kNoNode = UINT32_MAX;

// A symbol of a long piece: a linked list over an array, in text order.
struct Node {
  int32_t id = -1;
  uint32_t previous = kNoNode;
  uint32_t next = kNoNode;
  Merge merge{kNoRank, -1};  // with the next symbol
};

// Places of one rank, smallest first. Places are nearly always pushed in ascending order, since
// merging goes from left to right, so this is a plain queue; the first place out of order turns it
// into a heap.
class Places {
 public:
  bool empty() const { return first_ == places_.size(); }
  void push(uint32_t place) {
    if (!is_heap_ && !empty() && place < places_.back()) {
      places_.erase(places_.begin(), places_.begin() + static_cast<ptrdiff_t>(first_));
      first_ = 0;
      std::make_heap(places_.begin(), places_.end(), std::greater<>());
      is_heap_ = true;
    }
    places_.push_back(place);
    if (is_heap_) std::push_heap(places_.begin(), places_.end(), std::greater<>());
  }
  // REQUIRES: not empty.
  uint32_t pop() {
    uint32_t place = 0;
    if (is_heap_) {
      std::pop_heap(places_.begin(), places_.end(), std::greater<>());
      place = places_.back();
      places_.pop_back();
    } else {
      place = places_[first_++];
    }
    if (empty()) places_.clear(), first_ = 0, is_heap_ = false;
    return place;
  }

 private:
  std::vector<uint32_t> places_;
  size_t first_ = 0;  // elements before it were popped; 0 for a heap
  bool is_heap_ = false;
};

// Pairs that may merge: the lowest rank first, and the leftmost pair of equal ranks. The heap holds
// each distinct rank once, so that its size does not grow with repeated pairs.
class PairQueue {
 public:
  struct Entry {
    uint32_t rank;
    uint32_t place;
  };
  bool empty() const { return ranks_.empty(); }
  void push(uint32_t rank, uint32_t place) {
    Places& places = places_[rank];
    if (places.empty()) ranks_.push(rank);
    places.push(place);
  }
  // REQUIRES: not empty.
  Entry pop() {
    const uint32_t rank = ranks_.top();
    Places& places = places_[rank];
    const Entry entry{rank, places.pop()};
    if (places.empty()) ranks_.pop();
    return entry;
  }

 private:
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks_;
  std::unordered_map<uint32_t, Places> places_;
};

// Slots of a hash table: a power of two, at least twice the entries, so that probing stays short.
size_t slots_for(size_t num_entries) { return std::bit_ceil(2 * num_entries + 2); }

}  // namespace

// Multiplies by the odd constant 2^64 / golden ratio, eight bytes at a time; the shift feeds the
// high bits, which a product mixes best, back into the low ones.
uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u;
  uint64_t hash = bytes.size() * kFactor;
  const auto mix = [&hash](uint64_t word) {
    hash = (hash ^ word) * kFactor;
    hash ^= hash >> 32;
  };
  size_t pos = 0;
  for (; pos + 8 <= bytes.size(); pos += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + pos, 8);
    mix(word);
  }
  if (pos < bytes.size()) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + pos, bytes.size() - pos);
    mix(word);
  }
  return hash;
}

Vocabulary::Vocabulary(size_t num_ids) : entries_(num_ids), slots_(slots_for(num_ids)) {}

// Linear probing. The lower half of the hash selects the slot, the upper half is the tag.
size_t Vocabulary::probe(std::string_view bytes, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  const auto tag = static_cast<uint32_t>(hash >> 32);
  size_t slot = hash & mask;
  while (slots_[slot].id >= 0 &&
         (slots_[slot].tag != tag || this->bytes(slots_[slot].id) != bytes)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

// Appends the bytes to the arena; the index refers to them by id.
bool Vocabulary::add(int32_t id, std::string_view bytes, bool indexed) {
  SLUICE_CHECK(id >= 0 && id < num_ids(), "id {} of {}", id, num_ids());
  Entry& entry = entries_[static_cast<size_t>(id)];
  if (entry.present) return false;
  if (indexed) {
    const uint64_t hash = hash_bytes(bytes);
    Slot& slot = slots_[probe(bytes, hash)];
    if (slot.id >= 0) return false;
    slot = {id, static_cast<uint32_t>(hash >> 32)};
  }
  entry = {arena_.size(), static_cast<uint32_t>(bytes.size()), true};
  arena_.append(bytes);
  return true;
}

bool Vocabulary::has(int32_t id) const {
  return id >= 0 && id < num_ids() && entries_[static_cast<size_t>(id)].present;
}

std::string_view Vocabulary::bytes(int32_t id) const {
  if (!has(id)) return {};
  const Entry& entry = entries_[static_cast<size_t>(id)];
  return {arena_.data() + entry.offset, entry.num_bytes};
}

std::optional<int32_t> Vocabulary::find(std::string_view bytes) const {
  const int32_t id = slots_[probe(bytes, hash_bytes(bytes))].id;
  return id >= 0 ? std::optional(id) : std::nullopt;
}

MergeTable::MergeTable(size_t num_merges) : slots_(slots_for(num_merges)) {
  mask_ = slots_.size() - 1;
  shift_ = 64 - std::countr_zero(slots_.size());
}

// Linear probing, as in find().
void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t slot = slot_of(key);
  while (slots_[slot].key != kFree && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

BpeMerger::BpeMerger(const Vocabulary& vocabulary, MergeTable merges, UnknownByte unknown)
    : fuse_unknown_(unknown.fuse), merges_(std::move(merges)) {
  for (size_t byte = 0; byte < id_of_byte_.size(); ++byte) {
    // A byte without a token of its own gets the unknown token, or -1 to be left out.
    const char one = static_cast<char>(byte);
    const auto id = vocabulary.find({&one, 1});
    is_unknown_[byte] = !id;
    id_of_byte_[byte] = id.value_or(unknown.id);
  }
}

// Writes without branches: an id that is left out or fused is overwritten by the next one.
size_t BpeMerger::byte_ids(std::string_view piece, int32_t* ids) const {
  size_t count = 0;
  bool fuses = false;  // whether an unknown byte here joins the one before
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    ids[count] = id_of_byte_[byte];
    const bool unknown = is_unknown_[byte];
    count += ids[count] >= 0 && !(unknown && fuses) ? 1 : 0;
    fuses = unknown && fuse_unknown_;
  }
  return count;
}

void BpeMerger::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.size() <= kShortPieceBytes) {
    encode_short(piece, out);
  } else {
    encode_long(piece, out);
  }
}

// Repeats: find the lowest rank by a scan, merge that pair, and look up the pairs on both sides of
// it again. Quadratic in the length, without allocation.
void BpeMerger::encode_short(std::string_view piece, std::vector<int32_t>& out) const {
  int32_t ids[kShortPieceBytes + 1];
  Merge merges[kShortPieceBytes + 1];  // merges[i] joins ids[i] and ids[i + 1]
  size_t count = byte_ids(piece, ids);
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_.find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    // Joins ids[best] and ids[best + 1], closes the gap, and renews the merges of the new
    // neighbours.
    ids[best] = merges[best].id;
    --count;
    for (size_t i = best + 1; i < count; ++i) ids[i] = ids[i + 1];
    for (size_t i = best; i + 1 < count; ++i) merges[i] = merges[i + 1];
    if (best + 1 < count) merges[best] = merges_.find(ids[best], ids[best + 1]);
    if (best > 0) merges[best - 1] = merges_.find(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids, ids + count);
}

// The same result by a linked list of symbols and a queue of pairs; n log n.
void BpeMerger::encode_long(std::string_view piece, std::vector<int32_t>& out) const {
  std::vector<int32_t> ids(piece.size());
  const uint32_t count = static_cast<uint32_t>(byte_ids(piece, ids.data()));
  if (count == 0) return;
  std::vector<Node> nodes(count);
  PairQueue queue;
  // Looks up the merge of node i with its next one and queues it.
  const auto refresh = [&](uint32_t i) {
    Node& node = nodes[i];
    node.merge =
        node.next == kNoNode ? Merge{kNoRank, -1} : merges_.find(node.id, nodes[node.next].id);
    if (node.merge.rank != kNoRank) queue.push(node.merge.rank, i);
  };
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i] = {
        .id = ids[i], .previous = i > 0 ? i - 1 : kNoNode, .next = i + 1 < count ? i + 1 : kNoNode};
  }
  for (uint32_t i = 0; i < count; ++i) refresh(i);
  while (!queue.empty()) {
    const auto [rank, i] = queue.pop();
    // Entries are not removed when a neighbour merges. One is stale if the pair at its place now
    // has another rank; the rank identifies the pair.
    Node& node = nodes[i];
    if (node.merge.rank != rank) continue;
    Node& gone = nodes[node.next];
    node.id = node.merge.id;
    node.next = gone.next;
    if (node.next != kNoNode) nodes[node.next].previous = i;
    // The right node left the list: its queued entries become stale.
    gone.merge.rank = kNoRank;
    if (node.previous != kNoNode) refresh(node.previous);
    refresh(i);
  }
  // Node 0 is always the first: a merge keeps its left node.
  for (uint32_t i = 0; i != kNoNode; i = nodes[i].next) out.push_back(nodes[i].id);
}

}  // namespace sluice
