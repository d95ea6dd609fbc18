// ByteNet: the rules of a grammar as a network over bytes.
//
// A rule is a part of the network with one state where it begins; it ends in each state that
// accepts. A state reads a byte, enters a rule and goes on after its end, or moves without reading.
// Made by rules/rule_reader.h, walked by net_walker.h. Thread rule: a value; it does not change
// once it is finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automata/char_set.h"

namespace sluice {

struct ByteNet {
  struct Edge {
    uint8_t first = 0;
    uint8_t last = 0;  // included
    int32_t to = 0;
  };
  struct Call {
    int32_t rule = 0;
    int32_t to = 0;  // where it goes on
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<Call> calls;
    std::vector<int32_t> moves;
    bool accepts = false;     // the rule may end here
    bool is_in_text = false;  // of texts that were added, within their bytes

    // Whether nothing but the end of the rule follows.
    bool only_ends() const { return accepts && edges.empty() && calls.empty() && moves.empty(); }
  };
  struct Rule {
    std::string name;    // for errors
    int32_t begin = -1;  // a state
  };
  // Copies of a part one after the other: the state after the first one, and those that follow it.
  struct Run {
    int32_t first = 0;
    int32_t count = 0;
    int32_t min = 0;   // copies that must be; from then on each may be the last
    int32_t rule = 0;  // of the part
  };

  // Errors: kInvalidArgument beyond kMaxStates.
  int32_t add_state();
  State& at(int32_t state) { return states[static_cast<size_t>(state)]; }
  const State& at(int32_t state) const { return states[static_cast<size_t>(state)]; }
  // Reads the bytes of a text from a state on; the state after them, which is new.
  int32_t add_text(int32_t from, std::string_view bytes);
  // Reads the bytes of one character of a set between two states.
  void add_characters(int32_t from, const CharSet& set, int32_t to);

  // Takes out what cannot end, so that each state that is reached is on a way to an end. Errors:
  // kInvalidArgument if nothing is left of the first rule, and for a rule that enters itself before
  // it has read anything, which a walk would do without end.
  void finish();
  // A state where the same texts of fewer than `num_bytes` bytes may follow, without leaving the
  // copies of a part: of a long run of them, one stands for all in its middle.
  int32_t twin_of(int32_t state, int32_t num_bytes) const;
  size_t num_bytes() const;

  static constexpr size_t kMaxStates = 2'000'000;

  std::vector<State> states;
  std::vector<Rule> rules;  // the first one is the root
  std::vector<Run> runs;    // by their first states; with a part that reads something

 private:
  struct Leads {
    std::vector<int32_t> first;  // by state and one more: its first in `from`
    std::vector<int32_t> from;
  };
  void add_range(int32_t from, CharRange range, int32_t to);
  Leads leads_to() const;
  void drop_endless();
  void shorten_ends();
  // Whether each rule may read nothing.
  std::vector<bool> refuse_left_recursion() const;
  void refuse_cycles(const std::vector<std::vector<int32_t>>& entered) const;
};

}  // namespace sluice
