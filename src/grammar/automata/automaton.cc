// Subset construction, products, and Moore's minimisation.
#include "grammar/automata/automaton.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

// Where construction could go on for ever: (a|b)*a(a|b){40} has 2^40 states.
void check_size(size_t num_states) {
  if (num_states <= kMaxAutomatonStates) return;
  fail(ErrorCode::kInvalidArgument,
       "a pattern or a length needs more than {} states; shorten its repetitions",
       kMaxAutomatonStates);
}

// States that some accepting state can be reached from.
std::vector<bool> useful_states(const Automaton& a) {
  std::vector<std::vector<int32_t>> sources(a.states.size());
  std::vector<int32_t> todo;
  std::vector<bool> useful(a.states.size());
  for (size_t i = 0; i < a.states.size(); ++i) {
    for (const auto& edge : a.states[i].edges) {
      sources[static_cast<size_t>(edge.target)].push_back(static_cast<int32_t>(i));
    }
    useful[i] = a.states[i].accepts;
    if (useful[i]) todo.push_back(static_cast<int32_t>(i));
  }
  while (!todo.empty()) {
    const auto state = static_cast<size_t>(todo.back());
    todo.pop_back();
    for (const int32_t source : sources[state]) {
      if (useful[static_cast<size_t>(source)]) continue;
      useful[static_cast<size_t>(source)] = true;
      todo.push_back(source);
    }
  }
  return useful;
}

// Edges with targets renamed, neighbours with one target joined; those to -1 are dropped.
std::vector<Automaton::Edge> renamed(const std::vector<Automaton::Edge>& edges,
                                     const std::vector<int32_t>& names) {
  std::vector<Automaton::Edge> result;
  for (const auto& edge : edges) {
    const int32_t target = names[static_cast<size_t>(edge.target)];
    if (target < 0) continue;
    const bool joins = !result.empty() && result.back().target == target &&
                       result.back().on.last + 1 == edge.on.first;
    if (joins) {
      result.back().on.last = edge.on.last;
    } else {
      result.push_back({edge.on, target});
    }
  }
  return result;
}

// The class of each state; states of one class accept the same texts. Each round splits classes by
// where their edges lead, until no class is split.
std::vector<int32_t> classes_of(const Automaton& a, const std::vector<bool>& useful) {
  std::vector<int32_t> classes(a.states.size(), -1);
  for (size_t i = 0; i < a.states.size(); ++i) {
    if (useful[i]) classes[i] = a.states[i].accepts ? 1 : 0;
  }
  using Signature = std::pair<int32_t, std::vector<std::pair<CharRange, int32_t>>>;
  for (size_t num_classes = 0;;) {
    std::map<Signature, int32_t> found;
    std::vector<int32_t> next(a.states.size(), -1);
    for (size_t i = 0; i < a.states.size(); ++i) {
      if (!useful[i]) continue;
      Signature signature{classes[i], {}};
      for (const auto& edge : renamed(a.states[i].edges, classes)) {
        signature.second.emplace_back(edge.on, edge.target);
      }
      next[i] =
          found.emplace(std::move(signature), static_cast<int32_t>(found.size())).first->second;
    }
    classes = std::move(next);
    if (found.size() == num_classes) return classes;
    num_classes = found.size();
  }
}

// Useful states in classes of their own: rounds are as many as the longest text that tells two
// states apart, which for a length in the thousands would take seconds.
std::vector<int32_t> unmerged(const std::vector<bool>& useful) {
  std::vector<int32_t> classes(useful.size(), -1);
  int32_t num_classes = 0;
  for (size_t i = 0; i < useful.size(); ++i) {
    if (useful[i]) classes[i] = num_classes++;
  }
  return classes;
}

// The smallest automaton for the same texts (of many states: without those that lead nowhere), its
// states in the order in which they are reached.
Automaton minimal(const Automaton& a) {
  constexpr size_t kMaxMerged = 512;
  if (a.empty()) return a;
  const std::vector<bool> useful = useful_states(a);
  if (!useful[0]) return {};
  const std::vector<int32_t> classes =
      a.states.size() > kMaxMerged ? unmerged(useful) : classes_of(a, useful);
  std::vector<int32_t> sample(a.states.size(), -1);  // a state of each class
  for (size_t i = 0; i < a.states.size(); ++i) {
    if (classes[i] >= 0) sample[static_cast<size_t>(classes[i])] = static_cast<int32_t>(i);
  }
  std::vector<int32_t> names(a.states.size(), -1);  // by class
  std::vector<int32_t> order{classes[0]};
  names[static_cast<size_t>(classes[0])] = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t state = sample[static_cast<size_t>(order[i])];
    for (const auto& edge : renamed(a.states[static_cast<size_t>(state)].edges, classes)) {
      if (names[static_cast<size_t>(edge.target)] >= 0) continue;
      names[static_cast<size_t>(edge.target)] = static_cast<int32_t>(order.size());
      order.push_back(edge.target);
    }
  }
  Automaton result;
  for (const int32_t c : order) {
    const auto& state = a.states[static_cast<size_t>(sample[static_cast<size_t>(c)])];
    result.states.push_back({renamed(renamed(state.edges, classes), names), state.accepts});
  }
  return result;
}

// The states that a set of states reaches without reading.
std::vector<int32_t> closure(const LooseAutomaton& loose, std::vector<int32_t> states) {
  std::set<int32_t> seen(states.begin(), states.end());
  while (!states.empty()) {
    const int32_t state = states.back();
    states.pop_back();
    for (const int32_t next : loose.states[static_cast<size_t>(state)].moves) {
      if (seen.insert(next).second) states.push_back(next);
    }
  }
  return {seen.begin(), seen.end()};
}

// Calls `take` for each longest range of characters on which the edges of `states` lead to the same
// targets.
void split_edges(const LooseAutomaton& loose, const std::vector<int32_t>& states,
                 const std::function<void(CharRange, std::vector<int32_t>)>& take) {
  std::map<uint32_t, std::vector<std::pair<int32_t, int>>> borders;  // targets that begin or end
  for (const int32_t state : states) {
    for (const auto& edge : loose.states[static_cast<size_t>(state)].edges) {
      for (const CharRange range : edge.on.ranges()) {
        borders[range.first].emplace_back(edge.target, 1);
        borders[range.last + 1].emplace_back(edge.target, -1);
      }
    }
  }
  std::map<int32_t, int> active;
  for (auto it = borders.begin(); it != borders.end(); ++it) {
    for (const auto& [target, change] : it->second) {
      if ((active[target] += change) == 0) active.erase(target);
    }
    if (active.empty()) continue;
    std::vector<int32_t> targets;
    for (const auto& [target, count] : active) targets.push_back(target);
    take({it->first, std::next(it)->first - 1}, std::move(targets));
  }
}

// Runs both at once; `accepts` says which pairs of states accept. With `keeps_first` the second may
// have no state, -1.
Automaton product(const Automaton& a, const Automaton& b, bool keeps_first,
                  const std::function<bool(bool, bool)>& accepts) {
  if (a.empty() || (b.empty() && !keeps_first)) return {};
  using Pair = std::pair<int32_t, int32_t>;
  std::map<Pair, int32_t> names;
  std::vector<Pair> order;
  const auto name = [&](Pair pair) {
    const auto [it, is_new] = names.emplace(pair, static_cast<int32_t>(order.size()));
    if (is_new) order.push_back(pair);
    return it->second;
  };
  name({0, b.empty() ? -1 : 0});
  Automaton result;
  static const Automaton::State kNone;
  for (size_t i = 0; i < order.size(); ++i) {
    check_size(order.size() / 4);  // most of the pairs may turn out to be equal
    const auto [first, second] = order[i];
    const auto& x = a.states[static_cast<size_t>(first)];
    const auto& y = second < 0 ? kNone : b.states[static_cast<size_t>(second)];
    Automaton::State state{.edges = {}, .accepts = accepts(x.accepts, y.accepts)};
    for (const auto& edge : x.edges) {
      CharRange rest = edge.on;
      for (const auto& other : y.edges) {
        const CharRange both{std::max(rest.first, other.on.first),
                             std::min(rest.last, other.on.last)};
        if (both.first > both.last) continue;
        if (keeps_first && rest.first < both.first) {
          state.edges.push_back({{rest.first, both.first - 1}, name({edge.target, -1})});
        }
        state.edges.push_back({both, name({edge.target, other.target})});
        rest.first = both.last + 1;
        if (rest.first > rest.last) break;
      }
      if (keeps_first && rest.first <= rest.last) {
        state.edges.push_back({rest, name({edge.target, -1})});
      }
    }
    result.states.push_back(std::move(state));
  }
  Automaton smallest = minimal(result);
  check_size(smallest.states.size());
  return smallest;
}

}  // namespace

// More than a deterministic one may have: many of them end as one state.
int32_t LooseAutomaton::add_state() {
  check_size(states.size() / 8);
  states.emplace_back();
  return static_cast<int32_t>(states.size()) - 1;
}

int32_t LooseAutomaton::add(const Automaton& part) {
  const auto base = static_cast<int32_t>(states.size());
  for (const auto& state : part.states) {
    const int32_t name = add_state();
    states[static_cast<size_t>(name)].accepts = state.accepts;
  }
  for (size_t i = 0; i < part.states.size(); ++i) {
    for (const auto& edge : part.states[i].edges) {
      add_edge(base + static_cast<int32_t>(i), {edge.on}, base + edge.target);
    }
  }
  return base;
}

// One edge for each character.
bool Automaton::accepts(std::string_view utf8) const {
  if (empty()) return false;
  int32_t state = 0;
  for (const char32_t c : characters_of(utf8)) {
    const auto& edges = states[static_cast<size_t>(state)].edges;
    const auto has = [c](const Edge& edge) { return edge.on.first <= c && c <= edge.on.last; };
    const auto edge = std::ranges::find_if(edges, has);
    if (edge == edges.end()) return false;
    state = edge->target;
  }
  return states[static_cast<size_t>(state)].accepts;
}

// The states of the result are sets of states of `loose`.
Automaton deterministic(const LooseAutomaton& loose) {
  std::map<std::vector<int32_t>, int32_t> names;
  std::vector<std::vector<int32_t>> order;
  const auto name = [&](std::vector<int32_t> states) {
    const auto [it, is_new] = names.emplace(states, static_cast<int32_t>(order.size()));
    if (is_new) order.push_back(std::move(states));
    return it->second;
  };
  name(closure(loose, {0}));
  Automaton result;
  for (size_t i = 0; i < order.size(); ++i) {
    check_size(order.size() / 4);
    const std::vector<int32_t> states = order[i];
    Automaton::State state;
    const auto is_end = [&](int32_t s) { return loose.states[static_cast<size_t>(s)].accepts; };
    state.accepts = std::ranges::any_of(states, is_end);
    split_edges(loose, states, [&](CharRange on, std::vector<int32_t> targets) {
      state.edges.push_back({on, name(closure(loose, std::move(targets)))});
    });
    result.states.push_back(std::move(state));
  }
  Automaton smallest = minimal(result);
  check_size(smallest.states.size());
  return smallest;
}

// Both begin at once.
Automaton united(const Automaton& a, const Automaton& b) {
  LooseAutomaton loose;
  loose.add_state();
  for (const Automaton* part : {&a, &b}) {
    if (!part->empty()) loose.add_move(0, loose.add(*part));
  }
  return deterministic(loose);
}

// Only pairs that both reach are made.
Automaton intersected(const Automaton& a, const Automaton& b) {
  return product(a, b, false, [](bool x, bool y) { return x && y; });
}

// A second automaton that has no way on cannot forbid the rest.
Automaton without(const Automaton& a, const Automaton& b) {
  return product(a, b, true, [](bool x, bool y) { return x && !y; });
}

// One path for each text; determinism joins what they begin with.
Automaton of_texts(std::span<const std::string> texts) {
  LooseAutomaton loose;
  loose.add_state();
  for (const std::string& text : texts) {
    int32_t state = 0;
    for (const char32_t c : characters_of(text)) {
      const int32_t next = loose.add_state();
      loose.add_edge(state, {{c, c}}, next);
      state = next;
    }
    loose.states[static_cast<size_t>(state)].accepts = true;
  }
  return deterministic(loose);
}

// A tree of the texts; what leaves it may go on in any way.
Automaton all_but(std::span<const std::string> texts) {
  constexpr int32_t kAny = 1;
  Automaton result;
  result.states.resize(2, {.edges = {}, .accepts = true});
  std::vector<std::map<uint32_t, int32_t>> next(2);  // within the tree
  for (const std::string& text : texts) {
    size_t state = 0;
    for (const char32_t c : characters_of(text)) {
      const auto num_states = static_cast<int32_t>(next.size());
      const auto [to, is_new] = next[state].try_emplace(c, num_states);
      state = static_cast<size_t>(to->second);
      if (is_new) next.emplace_back();
    }
    check_size(next.size());
    result.states.resize(next.size(), {.edges = {}, .accepts = true});
    result.states[state].accepts = false;
  }
  for (size_t i = 0; i < next.size(); ++i) {
    for (CharRange range : CharSet::all().ranges()) {
      auto& edges = result.states[i].edges;
      auto it = next[i].lower_bound(range.first);
      for (; it != next[i].end() && it->first <= range.last; ++it) {
        if (it->first > range.first) edges.push_back({{range.first, it->first - 1}, kAny});
        edges.push_back({{it->first, it->first}, it->second});
        range.first = it->first + 1;
      }
      if (range.first <= range.last) edges.push_back({range, kAny});
    }
  }
  return result;
}

Automaton without_part(std::string_view text) {
  LooseAutomaton with;
  int32_t state = with.add_state();
  with.add_edge(state, CharSet::all(), state);
  for (const char32_t c : characters_of(text)) {
    const int32_t next = with.add_state();
    with.add_edge(state, {{static_cast<uint32_t>(c), static_cast<uint32_t>(c)}}, next);
    state = next;
  }
  with.add_edge(state, CharSet::all(), state);
  with.states[static_cast<size_t>(state)].accepts = true;
  return without(of_lengths(0, -1), deterministic(with));
}

// A state for each character. Already the smallest, so that a length in the thousands takes no
// time.
Automaton of_lengths(int64_t min, int64_t max) {
  if (max >= 0 && min > max) return {};
  const int64_t num_steps = max < 0 ? min : max;
  check_size(static_cast<size_t>(num_steps));
  Automaton result;
  for (int64_t i = 0; i <= num_steps; ++i) {
    Automaton::State state{.edges = {}, .accepts = i >= min};
    const bool is_last = i == num_steps;
    for (const CharRange range : CharSet::all().ranges()) {
      if (is_last && max >= 0) break;
      state.edges.push_back({range, static_cast<int32_t>(is_last ? i : i + 1)});
    }
    result.states.push_back(std::move(state));
  }
  return result;
}

}  // namespace sluice
