// Sets of places, the bytes between them, and walks over the vocabulary.
#include "grammar/walk/net_walker.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

// Places that a text has at once: ambiguous grammars have many.
constexpr size_t kMaxPlaces = 4096;
// What is kept, about 32 MiB each: sets with their tables, and masks of places.
constexpr size_t kMaxTables = size_t{1} << 15;
constexpr size_t kMaxSets = size_t{1} << 18;
constexpr size_t kMaxMaskBytes = size_t{32} << 20;
// A mask takes the rule below along while more nodes of the trie than this follow its end, up to
// this many rules.
constexpr size_t kManyNodes = size_t{1} << 14;
constexpr int kMaxFrames = 4;
// Parts of the trie with fewer nodes are not worth the question whether all of it is read.
constexpr size_t kFewNodes = 16;
// Fewer tokens are kept one by one.
constexpr size_t kFewTokens = 1024;

void set_bit(std::span<int32_t> words, int32_t id) {
  words[static_cast<size_t>(id / 32)] |= static_cast<int32_t>(uint32_t{1} << (id % 32));
}

std::vector<int32_t> bits_of(const std::vector<int32_t>& words) {
  std::vector<int32_t> bits;
  for (size_t i = 0; i < words.size(); ++i) {
    for (auto word = static_cast<uint32_t>(words[i]); word != 0; word &= word - 1) {
      bits.push_back(static_cast<int32_t>(i) * 32 + std::countr_zero(word));
    }
  }
  return bits;
}

size_t mixed(size_t hash, size_t value) { return (hash ^ value) * 0x9E3779B97F4A7C15u; }

}  // namespace

// The first two stacks have no frame: kEmpty and kAnywhere.
NetWalker::Tables NetWalker::empty_tables() {
  Tables tables;
  tables.stacks.resize(2);
  return tables;
}

NetWalker::NetWalker(ByteNet net, const TokenTrie& trie)
    : net_(std::move(net)),
      trie_(trie),
      num_words_(static_cast<size_t>(trie.max_token()) / 32 + 1),
      path_(static_cast<size_t>(trie.max_depth()) + 1) {}

// ---- Walks -----------------------------------------------------------------------------------

// Walks are kept in a list, since a walk must stay where it is while others come and go.
std::list<NetWalker::Walk>::iterator NetWalker::begin_walk() {
  const std::lock_guard lock(mutex_);
  const Place begin{.state = net_.rules.front().begin, .stack = kEmpty};
  walks_.push_front({closed({&begin, 1})});
  return walks_.begin();
}

void NetWalker::end_walk(std::list<Walk>::iterator walk) {
  const std::lock_guard lock(mutex_);
  walks_.erase(walk);
}

// A token costs one look into a table for each of its bytes where the text or a mask was before. Of
// a very long text the oldest steps are forgotten in bulk, which no draft reaches back to.
bool NetWalker::read(Walk& walk, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  drop_old_sets();
  int32_t set = walk.back();
  for (const char c : bytes) {
    set = next(set, static_cast<uint8_t>(c));
    if (set == kDead) return false;
  }
  walk.push_back(set);
  if (walk.size() > 2 * kMaxSteps) walk.erase(walk.begin(), walk.begin() + kMaxSteps);
  return true;
}

void NetWalker::step_back(Walk& walk, int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  SLUICE_CHECK(num_tokens < std::ssize(walk), "{} tokens back", num_tokens);
  walk.resize(walk.size() - static_cast<size_t>(num_tokens));
}

bool NetWalker::is_complete(const Walk& walk) {
  const std::lock_guard lock(mutex_);
  return at(walk.back()).is_complete;
}

// What may follow a set is what may follow one of its places.
void NetWalker::fill_mask(const Walk& walk, std::span<int32_t> words) {
  const std::lock_guard lock(mutex_);
  drop_old_sets();
  std::ranges::fill(words, 0);
  const std::vector<Place> places = at(walk.back()).places;
  for (const Place place : places) {
    const PlaceMask& mask = mask_of(place);
    for (size_t i = 0; i < mask.words.size(); ++i) words[i] |= mask.words[i];
    for (const int32_t token : mask.tokens) set_bit(words, token);
    add_leaves(mask, place.stack, words);
  }
}

// ---- Sets ------------------------------------------------------------------------------------

// All places that are reached without reading; those that read bytes make up the set.
int32_t NetWalker::closed(std::span<const Place> places) {
  made_ = {};
  seen_.clear();
  std::vector<Place> open(places.begin(), places.end());
  while (!open.empty()) {
    const Place place = open.back();
    open.pop_back();
    if (std::ranges::find(seen_, place) != seen_.end()) continue;
    if (seen_.size() >= kMaxPlaces) {
      fail(ErrorCode::kInvalidArgument,
           "grammar: a text has more than {} ways to go on; make it less ambiguous", kMaxPlaces);
    }
    seen_.push_back(place);
    visit(place, open);
  }
  std::ranges::sort(made_.places, {}, [](Place p) { return std::pair(p.state, p.stack); });
  return keep(std::move(made_));
}

// A call at the end of a rule needs no frame, so that recursion at the end takes no memory.
void NetWalker::visit(Place place, std::vector<Place>& open) {
  const ByteNet::State& state = net_.at(place.state);
  if (!state.edges.empty()) made_.places.push_back(place);
  for (const int32_t to : state.moves) open.push_back({to, place.stack});
  for (const ByteNet::Call& call : state.calls) {
    const int32_t begin = net_.rules[static_cast<size_t>(call.rule)].begin;
    const bool is_last = net_.at(call.to).only_ends();
    open.push_back({begin, is_last ? place.stack : stack_of(call.to, place.stack)});
  }
  if (!state.accepts) return;
  if (place.stack == kEmpty) {
    made_.is_complete = true;
  } else if (place.stack == kAnywhere) {
    made_.leaves = true;
  } else {
    const Frame frame = tables_.stacks[static_cast<size_t>(place.stack)];
    open.push_back({frame.state, frame.below});
  }
}

// Equal stacks have one number, so that sets of places can be compared as numbers.
int32_t NetWalker::stack_of(int32_t state, int32_t below) {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32 | static_cast<uint32_t>(below);
  const auto [found, is_new] =
      tables_.stack_ids.try_emplace(key, static_cast<int32_t>(tables_.stacks.size()));
  if (is_new) tables_.stacks.push_back({state, below});
  return found->second;
}

// One that is known already is not kept twice; one with nothing in it is dead.
int32_t NetWalker::keep(Set set) {
  if (set.places.empty() && !set.is_complete && !set.leaves) return kDead;
  size_t hash = (set.is_complete ? 1u : 0u) + (set.leaves ? 2u : 0u);
  for (const Place place : set.places) {
    hash = mixed(mixed(hash, static_cast<size_t>(place.state)), static_cast<size_t>(place.stack));
  }
  const auto [first, last] = tables_.set_ids.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Set& known = at(it->second);
    if (known.places == set.places && known.is_complete == set.is_complete &&
        known.leaves == set.leaves) {
      return it->second;
    }
  }
  const auto id = static_cast<int32_t>(tables_.sets.size());
  tables_.sets.push_back(std::move(set));
  tables_.set_ids.emplace(hash, id);
  return id;
}

// The set after a byte. Looks into the table first: all but the first walk end here.
int32_t NetWalker::next(int32_t set, uint8_t byte) {
  const auto& table = at(set).next;
  if (table && (*table)[byte] != kUnknown) return (*table)[byte];
  return made_next(set, byte);
}

int32_t NetWalker::made_next(int32_t set, uint8_t byte) {
  if (!at(set).next) {
    at(set).next = std::make_unique<std::array<int32_t, 256>>();
    at(set).next->fill(kUnknown);
    ++num_tables_;
  }
  std::vector<Place> reached;
  for (const Place place : at(set).places) {
    for (const ByteNet::Edge& edge : net_.at(place.state).edges) {
      if (byte >= edge.first && byte <= edge.last) reached.push_back({edge.to, place.stack});
    }
  }
  const int32_t to = reached.empty() ? kDead : closed(reached);
  (*at(set).next)[byte] = to;
  return to;
}

// ---- Masks -----------------------------------------------------------------------------------

// In a text all lead to one set; in a number or a name the second one that is tried leads
// elsewhere.
int32_t NetWalker::plain_next(int32_t set) {
  if (at(set).plain != kUnknown) return at(set).plain;
  int32_t to = next(set, ' ');
  for (int byte = 0; byte < 256 && to != kDead; ++byte) {
    const auto b = static_cast<uint8_t>(byte);
    if (TokenTrie::is_plain(b) && next(set, b) != to) to = kDead;
  }
  return at(set).plain = to;
}

// Whether it reads so many plain bytes, whichever they are, and no rule may end before or after.
bool NetWalker::reads_all(int32_t set, int num_bytes) {
  for (; num_bytes > 0; --num_bytes) {
    const int32_t to = at(set).leaves ? kDead : plain_next(set);
    if (to == set) return true;
    if (to == kDead) return false;
    set = to;
  }
  return !at(set).leaves;
}

// Visits the nodes [first, last) of the trie, which are all under one, from a set there; where all
// under a node is read, together with that.
template <typename Visit>
void NetWalker::walk_trie(size_t first, size_t last, int32_t from, const Visit& visit) {
  const std::span<const TokenTrie::Node> nodes = trie_.nodes();
  if (first >= last) return;
  path_[static_cast<size_t>(nodes[first].depth) - 1] = from;
  for (size_t i = first; i < last;) {
    const TokenTrie::Node& node = nodes[i];
    const int32_t set = next(path_[static_cast<size_t>(node.depth) - 1], node.byte);
    if (set == kDead) {
      i = static_cast<size_t>(node.end);
      continue;
    }
    path_[node.depth] = set;
    const auto end = static_cast<size_t>(node.end);
    const bool has_all =
        node.height != TokenTrie::kMixed && end - i > kFewNodes && reads_all(set, node.height);
    visit(i, has_all ? end : i + 1, set);
    i = has_all ? end : i + 1;
  }
}

// Takes rules below along while a large part of the vocabulary goes on after the last of them: of
// a rule that reads one character, nearly all.
const NetWalker::PlaceMask& NetWalker::mask_of(Place place) {
  const PlaceMask* mask = &kept_mask({place.state, kAnywhere});
  for (int32_t below = place.stack; mask->num_after > kManyNodes && below > kAnywhere;
       below = tables_.stacks[static_cast<size_t>(below)].below) {
    const int num_frames = mask->num_frames + 1;
    if (num_frames > kMaxFrames) break;
    mask = &kept_mask({place.state, top_of(place.stack, num_frames)});
  }
  return *mask;
}

// The newest frames of a stack, which was entered anywhere.
int32_t NetWalker::top_of(int32_t stack, int num_frames) {
  std::array<int32_t, kMaxFrames> states{};
  for (int i = 0; i < num_frames; ++i) {
    const Frame frame = tables_.stacks[static_cast<size_t>(stack)];
    states[static_cast<size_t>(i)] = net_.twin_of(frame.state, trie_.max_depth());
    stack = frame.below;
  }
  int32_t top = kAnywhere;
  for (int i = num_frames; i-- > 0;) top = stack_of(states[static_cast<size_t>(i)], top);
  return top;
}

// When masks take too much, all are dropped and made again as they are needed: the texts that are
// being written need few of them, and which those are is not worth a list.
const NetWalker::PlaceMask& NetWalker::kept_mask(Place place) {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(place.state)) << 32 |
                       static_cast<uint32_t>(place.stack);
  const auto found = masks_.find(key);
  if (found != masks_.end()) return found->second;
  if (mask_bytes_ > kMaxMaskBytes) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  PlaceMask mask = made_mask(place);
  mask_bytes_ += (mask.words.size() + mask.tokens.size() + mask.leaves.size()) * sizeof(int32_t);
  return masks_.emplace(key, std::move(mask)).first->second;
}

NetWalker::PlaceMask NetWalker::made_mask(Place place) {
  PlaceMask mask;
  for (int32_t stack = place.stack; stack != kAnywhere; ++mask.num_frames) {
    stack = tables_.stacks[static_cast<size_t>(stack)].below;
  }
  // The state's own bytes alone: what it reaches without reading has masks of its own.
  Set begin;
  begin.places = {place};
  mask.words.resize(num_words_);
  size_t num_tokens = 0;
  const std::span<const TokenTrie::Node> nodes = trie_.nodes();
  const auto add = [&](size_t node, size_t end, int32_t set) {
    for (const int32_t token : trie_.tokens_in(node, end)) {
      set_bit(mask.words, token);
      ++num_tokens;
    }
    const auto num_after = static_cast<size_t>(nodes[node].end) - node - 1;
    if (num_after == 0 || !at(set).leaves) return;
    mask.leaves.push_back(static_cast<int32_t>(node));
    mask.num_after += num_after;
  };
  walk_trie(1, nodes.size() - 1, keep(std::move(begin)), add);
  if (num_tokens < kFewTokens) mask.tokens = bits_of(std::exchange(mask.words, {}));
  return mask;
}

// Tokens that go on after the rule: from each node where it may end, in the rules below.
void NetWalker::add_leaves(const PlaceMask& mask, int32_t stack, std::span<int32_t> words) {
  if (mask.leaves.empty()) return;
  for (int i = 0; i < mask.num_frames; ++i) {
    stack = tables_.stacks[static_cast<size_t>(stack)].below;
  }
  if (stack == kEmpty) return;
  const Frame frame = tables_.stacks[static_cast<size_t>(stack)];
  const Place place{.state = frame.state, .stack = frame.below};
  const int32_t after = closed({&place, 1});
  if (after == kDead) return;
  const std::span<const TokenTrie::Node> nodes = trie_.nodes();
  for (const int32_t leaf : mask.leaves) {
    const auto node = static_cast<size_t>(leaf);
    const auto add = [&](size_t first, size_t last, int32_t) {
      for (const int32_t token : trie_.tokens_in(first, last)) set_bit(words, token);
    };
    walk_trie(node + 1, static_cast<size_t>(nodes[node].end), after, add);
  }
}

// ---- Memory ----------------------------------------------------------------------------------

size_t NetWalker::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return net_.num_bytes() + mask_bytes_ + num_tables_ * sizeof(std::array<int32_t, 256>) +
         tables_.sets.size() * sizeof(Set) + tables_.stacks.size() * sizeof(Frame);
}

// Keeps the sets of walks alone: what a walk may come back to.
void NetWalker::drop_old_sets() {
  if (num_tables_ < kMaxTables && tables_.sets.size() < kMaxSets) return;
  masks_.clear();  // their stacks get other numbers
  mask_bytes_ = 0;
  const Tables old = std::exchange(tables_, empty_tables());
  num_tables_ = 0;
  std::vector<int32_t> stacks(old.stacks.size(), -1);
  std::unordered_map<int32_t, int32_t> done;
  for (Walk& walk : walks_) {
    for (int32_t& set : walk) set = copied(old, set, stacks, done);
  }
}

int32_t NetWalker::copied(const Tables& old, int32_t set, std::vector<int32_t>& stacks,
                          std::unordered_map<int32_t, int32_t>& done) {
  const auto known = done.find(set);
  if (known != done.end()) return known->second;
  const Set& from = old.sets[static_cast<size_t>(set)];
  Set copy;
  copy.is_complete = from.is_complete;
  copy.leaves = from.leaves;
  for (const Place place : from.places) {
    copy.places.push_back({place.state, copied_stack(old, place.stack, stacks)});
  }
  std::ranges::sort(copy.places, {}, [](Place p) { return std::pair(p.state, p.stack); });
  return done.emplace(set, keep(std::move(copy))).first->second;
}

// From the bottom up, since stacks may be deep.
int32_t NetWalker::copied_stack(const Tables& old, int32_t stack, std::vector<int32_t>& stacks) {
  std::vector<int32_t> path;
  int32_t made = stack;
  while (made > kAnywhere && stacks[static_cast<size_t>(made)] < 0) {
    path.push_back(made);
    made = old.stacks[static_cast<size_t>(made)].below;
  }
  if (made > kAnywhere) made = stacks[static_cast<size_t>(made)];
  for (; !path.empty(); path.pop_back()) {
    made = stack_of(old.stacks[static_cast<size_t>(path.back())].state, made);
    stacks[static_cast<size_t>(path.back())] = made;
  }
  return made;
}

}  // namespace sluice
