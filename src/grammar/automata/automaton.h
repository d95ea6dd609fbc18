// Automata over characters: what strings of a schema and regular expressions may be, exactly.
//
// A language is built from a regular expression (regex.h) or from texts, combined with others, and
// written as rules of a grammar (rules/automaton_rules.h). Thread rule: values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automata/char_set.h"

namespace sluice {

// Larger ones are refused: each state costs a rule, and each rule of a grammar time and memory.
inline constexpr size_t kMaxAutomatonStates = 8192;

// Deterministic, and every state is on a path from the first state to an accepting one.
struct Automaton {
  struct Edge {
    CharRange on;
    int32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;  // sorted; no character is in two of them
    bool accepts = false;
  };
  std::vector<State> states;  // the first one begins; empty: nothing is accepted

  bool empty() const { return states.empty(); }
  bool accepts(std::string_view utf8) const;
};

// Not deterministic, with moves that read nothing; for construction.
struct LooseAutomaton {
  struct Edge {
    CharSet on;
    int32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;
    std::vector<int32_t> moves;
    bool accepts = false;
  };
  std::vector<State> states;  // the first one begins

  int32_t add_state();
  void add_edge(int32_t from, CharSet on, int32_t to) {
    states[static_cast<size_t>(from)].edges.push_back({std::move(on), to});
  }
  // A copy of the states, of which it returns the first. REQUIRES: not empty.
  int32_t add(const Automaton& part);
  void add_move(int32_t from, int32_t to) { states[static_cast<size_t>(from)].moves.push_back(to); }
};

// Small ones are the smallest for their texts. Errors: kInvalidArgument beyond kMaxAutomatonStates.
Automaton deterministic(const LooseAutomaton& loose);
Automaton united(const Automaton& a, const Automaton& b);
Automaton intersected(const Automaton& a, const Automaton& b);
Automaton without(const Automaton& a, const Automaton& b);
// Exactly these texts.
Automaton of_texts(std::span<const std::string> texts);
// All texts but these.
Automaton all_but(std::span<const std::string> texts);
// Every text that does not have this one in it. REQUIRES: not empty.
Automaton without_part(std::string_view text);
// Every text of `min` to `max` characters; `max` below 0: no limit.
Automaton of_lengths(int64_t min, int64_t max);

}  // namespace sluice
