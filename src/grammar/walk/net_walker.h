// NetWalker: walks a network over bytes by sets of places, and makes masks of tokens.
//
// A place is a state and a stack of the states where the rules that were entered go on. A text is
// at a set of places. Sets are made when a text, or a token that might follow, first gets there,
// and kept: a byte then costs one look into a table. The mask of a place has two parts: tokens that
// end within the state's rule, which are the same wherever the rule was entered, and are looked for
// once in the whole vocabulary; and those that go on after its end, which are looked for in the
// part of the vocabulary that gets so far, each time. Where that is a large part, the rule below is
// taken with it. So nothing is compiled ahead: the first mask of a state takes a walk over the
// vocabulary, up to some milliseconds, and later ones microseconds.
//
// A grammar has one. Thread rule: any thread; calls wait for each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/walk/byte_net.h"
#include "grammar/walk/token_trie.h"

namespace sluice {

class NetWalker {
 public:
  // A text that is walked: its sets after each token, the newest last, and kMaxSteps at least. Sets
  // of a walk are kept; others are dropped when there are too many.
  using Walk = std::vector<int32_t>;
  static constexpr int kMaxSteps = 256;

  // REQUIRES: a finished net. The trie outlives this object.
  NetWalker(ByteNet net, const TokenTrie& trie);

  // Adds a walk that has read nothing, and takes it out.
  std::list<Walk>::iterator begin_walk();
  void end_walk(std::list<Walk>::iterator walk);

  // Reads a token. False, and no effect, if no text of the grammar goes on so.
  bool read(Walk& walk, std::string_view bytes);
  // Forgets the last tokens. REQUIRES: they are fewer than what the walk has.
  void step_back(Walk& walk, int64_t num_tokens);
  // Whether a text of the grammar ends here.
  bool is_complete(const Walk& walk);
  // Sets the bits of tokens that may follow; clears all others.
  void fill_mask(const Walk& walk, std::span<int32_t> words);

  // With what is kept now.
  size_t num_bytes() const;

 private:
  // Of sets: nothing, and not known yet.
  static constexpr int32_t kDead = -1;
  static constexpr int32_t kUnknown = -2;
  // Stacks that every walker has: of a text's beginning, and of a rule that was entered anywhere.
  static constexpr int32_t kEmpty = 0;
  static constexpr int32_t kAnywhere = 1;

  struct Place {
    int32_t state = 0;
    int32_t stack = kEmpty;
    bool operator==(const Place&) const = default;
  };
  struct Frame {
    int32_t state = -1;  // where the rule above goes on
    int32_t below = -1;  // a stack
  };
  struct Set {
    std::vector<Place> places;  // those that read bytes, sorted
    bool is_complete = false;   // a text may end
    bool leaves = false;        // a rule that was entered anywhere may end
    int32_t plain = kUnknown;   // the set that each plain byte leads to, if it is one
    std::unique_ptr<std::array<int32_t, 256>> next = nullptr;  // sets; made when needed
  };
  // The tokens that may follow a place until the end of its rule, or of some rules below it.
  struct PlaceMask {
    std::vector<int32_t> words;   // as bits, or
    std::vector<int32_t> tokens;  // one by one, where they are few
    std::vector<int32_t> leaves;  // nodes of the trie where the last rule may end and tokens go on
    size_t num_after = 0;         // nodes under these
    int num_frames = 0;           // rules below that it has
  };
  struct Tables {
    std::vector<Set> sets;
    std::unordered_multimap<size_t, int32_t> set_ids;  // by hash
    std::vector<Frame> stacks;
    std::unordered_map<uint64_t, int32_t> stack_ids;
  };

  int32_t closed(std::span<const Place> places);
  void visit(Place place, std::vector<Place>& open);
  int32_t stack_of(int32_t state, int32_t below);
  int32_t keep(Set set);
  int32_t next(int32_t set, uint8_t byte);
  int32_t made_next(int32_t set, uint8_t byte);
  Set& at(int32_t set) { return tables_.sets[static_cast<size_t>(set)]; }

  const PlaceMask& mask_of(Place place);
  const PlaceMask& kept_mask(Place place);
  PlaceMask made_mask(Place place);
  void add_leaves(const PlaceMask& mask, int32_t stack, std::span<int32_t> words);
  int32_t top_of(int32_t stack, int num_frames);
  // Most of a vocabulary is plain: under the node where a text goes on whatever comes, the walk
  // takes all tokens at once.
  int32_t plain_next(int32_t set);
  bool reads_all(int32_t set, int num_bytes);
  template <typename Visit>
  void walk_trie(size_t first, size_t last, int32_t from, const Visit& visit);

  void drop_old_sets();
  int32_t copied(const Tables& old, int32_t set, std::vector<int32_t>& stacks,
                 std::unordered_map<int32_t, int32_t>& done);
  int32_t copied_stack(const Tables& old, int32_t stack, std::vector<int32_t>& stacks);
  static Tables empty_tables();

  const ByteNet net_;
  const TokenTrie& trie_;
  const size_t num_words_;  // of the bits of tokens

  mutable std::mutex mutex_;
  Tables tables_ = empty_tables();
  size_t num_tables_ = 0;  // of sets that have one
  std::list<Walk> walks_;
  std::unordered_map<uint64_t, PlaceMask> masks_;  // by place, whose stack ends anywhere
  size_t mask_bytes_ = 0;
  std::vector<int32_t> path_;  // of a walk over the trie: sets by depth
  // Of `closed`.
  Set made_;
  std::vector<Place> seen_;
};

}  // namespace sluice
