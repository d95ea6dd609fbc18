// Characters become sequences of ranges of bytes; two passes over the rules check them.
#include "grammar/walk/byte_net.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace sluice {
namespace {

// Of characters that take up to 1, 2, 3 and 4 bytes.
constexpr std::array<uint32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};

}  // namespace

int32_t ByteNet::add_state() {
  if (states.size() >= kMaxStates) {
    fail(ErrorCode::kInvalidArgument,
         "grammar: it has more than {} states; give lower counts, or fewer alternatives",
         kMaxStates);
  }
  states.emplace_back();
  return static_cast<int32_t>(states.size()) - 1;
}

// Texts that begin alike share their states up to the last byte.
int32_t ByteNet::add_text(int32_t from, std::string_view bytes) {
  const int32_t end = add_state();
  if (bytes.empty()) {
    at(from).moves.push_back(end);
    return end;
  }
  const auto first_of = [](std::string_view text) { return static_cast<uint8_t>(text.front()); };
  for (; bytes.size() > 1; bytes.remove_prefix(1)) {
    const uint8_t byte = first_of(bytes);
    const auto is_shared = [&](const Edge& edge) {
      return edge.first == byte && at(edge.to).is_in_text;
    };
    const auto known = std::ranges::find_if(at(from).edges, is_shared);
    if (known != at(from).edges.end()) {
      from = known->to;
      continue;
    }
    const int32_t next = add_state();
    at(next).is_in_text = true;
    at(from).edges.push_back({byte, byte, next});
    from = next;
  }
  at(from).edges.push_back({first_of(bytes), first_of(bytes), end});
  return end;
}

void ByteNet::add_characters(int32_t from, const CharSet& set, int32_t to) {
  for (const CharRange range : set.ranges()) {
    uint32_t first = range.first;
    for (const uint32_t last : kLastOfLength) {
      if (first > last || first > range.last) continue;
      add_range(from, {first, std::min(range.last, last)}, to);
      first = last + 1;
    }
  }
}

// Characters of one length. Splits the range until all bytes but the first ones are whole ranges.
void ByteNet::add_range(int32_t from, CharRange range, int32_t to) {
  const std::string first = utf8_of(range.first);
  for (size_t i = 1; i < first.size(); ++i) {
    const uint32_t low_bits = (1U << (6 * i)) - 1;
    if ((range.first & ~low_bits) == (range.last & ~low_bits)) continue;
    if ((range.first & low_bits) != 0) {
      add_range(from, {range.first, range.first | low_bits}, to);
      return add_range(from, {(range.first | low_bits) + 1, range.last}, to);
    }
    if ((range.last & low_bits) != low_bits) {
      add_range(from, {range.first, (range.last & ~low_bits) - 1}, to);
      return add_range(from, {range.last & ~low_bits, range.last}, to);
    }
  }
  const std::string last = utf8_of(range.last);
  for (size_t i = 0; i < first.size(); ++i) {
    const int32_t next = i + 1 < first.size() ? add_state() : to;
    at(from).edges.push_back({static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]), next});
    from = next;
  }
}

// The order matters: a state that cannot end would hide that another one only ends, and left
// recursion is looked for among what is left, so that rules without an end give the first error.
void ByteNet::finish() {
  drop_endless();
  if (rules.front().begin < 0) {
    fail(ErrorCode::kInvalidArgument, "grammar: no text ends {}; give it an end",
         rules.front().name);
  }
  shorten_ends();
  const std::vector<bool> may_be_empty = refuse_left_recursion();
  const auto reads = [&](const Run& run) { return !may_be_empty[static_cast<size_t>(run.rule)]; };
  std::erase_if(runs, std::not_fn(reads));
}

// By state, the states that lead to it: also from a call to the state where its rule begins.
ByteNet::Leads ByteNet::leads_to() const {
  Leads leads;
  leads.first.assign(states.size() + 2, 0);
  const auto each = [&](const auto& visit) {
    for (int32_t from = 0; from < std::ssize(states); ++from) {
      for (const Edge& edge : at(from).edges) visit(from, edge.to);
      for (const int32_t to : at(from).moves) visit(from, to);
      for (const Call& call : at(from).calls) {
        visit(from, call.to);
        const int32_t begin = rules[static_cast<size_t>(call.rule)].begin;
        if (begin >= 0) visit(from, begin);
      }
    }
  };
  each([&](int32_t, int32_t to) { ++leads.first[static_cast<size_t>(to) + 2]; });
  std::partial_sum(leads.first.begin(), leads.first.end(), leads.first.begin());
  leads.from.resize(static_cast<size_t>(leads.first.back()));
  each([&](int32_t from, int32_t to) {
    leads.from[static_cast<size_t>(leads.first[static_cast<size_t>(to) + 1]++)] = from;
  });
  return leads;
}

// A state that only moves to ends of its rule is one, so that what is entered last is known to be.
void ByteNet::shorten_ends() {
  bool changes = true;
  const auto look_at = [&](State& state) {
    const bool only_moves = state.edges.empty() && state.calls.empty() && !state.moves.empty();
    const auto only_ends = [&](int32_t to) { return at(to).only_ends(); };
    if (!only_moves || !std::ranges::all_of(state.moves, only_ends)) return;
    state.accepts = true;
    state.moves.clear();
    changes = true;
  };
  while (changes) {
    changes = false;
    for (size_t i = states.size(); i-- > 0;) look_at(states[i]);
    for (State& state : states) look_at(state);
  }
}

// A state can end if it accepts, or if something leads on to one that can; a call can if its rule
// can. From each state that is found to end, those that lead to it are looked at.
void ByteNet::drop_endless() {
  std::vector<bool> can_end(states.size(), false);
  const auto ends = [&](int32_t state) { return can_end[static_cast<size_t>(state)]; };
  const auto call_ends = [&](const Call& call) {
    const int32_t begin = rules[static_cast<size_t>(call.rule)].begin;
    return ends(call.to) && begin >= 0 && ends(begin);
  };
  const Leads leads = leads_to();
  std::vector<int32_t> open;
  const auto look_at = [&](int32_t index) {
    const State& state = at(index);
    if (ends(index)) return;
    const bool found = state.accepts || std::ranges::any_of(state.moves, ends) ||
                       std::ranges::any_of(state.edges, ends, &Edge::to) ||
                       std::ranges::any_of(state.calls, call_ends);
    if (!found) return;
    can_end[static_cast<size_t>(index)] = true;
    open.push_back(index);
  };
  for (int32_t i = 0; i < std::ssize(states); ++i) {
    if (at(i).accepts) look_at(i);
  }
  while (!open.empty()) {
    const auto state = static_cast<size_t>(open.back());
    open.pop_back();
    for (int32_t k = leads.first[state]; k < leads.first[state + 1]; ++k) {
      look_at(leads.from[static_cast<size_t>(k)]);
    }
  }
  for (State& state : states) {
    std::erase_if(state.edges, [&](const Edge& edge) { return !ends(edge.to); });
    std::erase_if(state.moves, [&](int32_t to) { return !ends(to); });
    std::erase_if(state.calls, [&](const Call& call) { return !call_ends(call); });
  }
  for (Rule& rule : rules) {
    if (rule.begin >= 0 && !ends(rule.begin)) rule.begin = -1;
  }
}

// First which rules may read nothing, then which are entered before anything is read, then whether
// one of these enters itself.
// Whether a rule may be empty depends on the rules that it enters, so this repeats until nothing
// changes: as often as empty rules are nested, which is twice for most grammars.
std::vector<bool> ByteNet::refuse_left_recursion() const {
  std::vector<bool> may_be_empty(rules.size(), false);
  std::vector<std::vector<int32_t>> entered(rules.size());
  const auto walk = [&](size_t rule) {
    std::vector<int32_t> open = {rules[rule].begin};
    std::vector<int32_t> seen = open;
    entered[rule].clear();
    bool is_empty = false;
    const auto go = [&](int32_t to) {
      if (std::ranges::find(seen, to) != seen.end()) return;
      seen.push_back(to);
      open.push_back(to);
    };
    while (!open.empty()) {
      const State& state = at(open.back());
      open.pop_back();
      is_empty = is_empty || state.accepts;
      std::ranges::for_each(state.moves, go);
      for (const Call& call : state.calls) {
        entered[rule].push_back(call.rule);
        if (may_be_empty[static_cast<size_t>(call.rule)]) go(call.to);
      }
    }
    return is_empty;
  };
  for (bool changes = true; changes;) {
    changes = false;
    for (size_t rule = 0; rule < rules.size(); ++rule) {
      if (rules[rule].begin < 0) continue;
      const bool is_empty = walk(rule);
      changes = changes || is_empty != may_be_empty[rule];
      may_be_empty[rule] = is_empty;
    }
  }
  refuse_cycles(entered);
  return may_be_empty;
}

// Whether a rule is entered again while nothing was read since.
// A search in depth with a stack of its own: rules of a large schema enter each other thousands of
// times in a row, which would be too deep for calls.
void ByteNet::refuse_cycles(const std::vector<std::vector<int32_t>>& entered) const {
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(rules.size(), Mark::kNew);
  std::vector<std::pair<size_t, size_t>> path;  // a rule and the next of those that it enters
  for (size_t root = 0; root < rules.size(); ++root) {
    if (marks[root] != Mark::kNew) continue;
    path.emplace_back(root, 0);
    marks[root] = Mark::kOpen;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == entered[rule].size()) {
        marks[rule] = Mark::kDone;
        path.pop_back();
        continue;
      }
      const auto to = static_cast<size_t>(entered[rule][next++]);
      if (marks[to] == Mark::kOpen) {
        fail(ErrorCode::kInvalidArgument,
             "grammar: {} enters itself before it reads anything (left recursion); write "
             "repetition with * or with the recursion at the end",
             rules[to].name);
      }
      if (marks[to] == Mark::kDone) continue;
      marks[to] = Mark::kOpen;
      path.emplace_back(to, 0);
    }
  }
}

// Within a run of copies, what may follow depends on the copies that must still come and those that
// may. As long as both are beyond what a token can reach, all copies are alike, so the masks of a
// text of 10,000 characters are those of a few places.
int32_t ByteNet::twin_of(int32_t state, int32_t num_bytes) const {
  const auto after = std::ranges::upper_bound(runs, state, {}, &Run::first);
  if (after == runs.begin()) return state;
  const Run& run = *std::prev(after);
  const int32_t num_done = state - run.first + 1;
  if (num_done > run.count) return state;
  const auto state_after = [&](int32_t num_copies) { return run.first + num_copies - 1; };
  if (run.min - num_done >= num_bytes) return run.first;
  const int32_t num_free = std::max(run.min, 1);
  if (num_done >= num_free && run.count - num_done >= num_bytes) return state_after(num_free);
  return state;
}

size_t ByteNet::num_bytes() const {
  size_t sum = states.size() * sizeof(State) + rules.size() * sizeof(Rule);
  for (const State& state : states) {
    sum += state.edges.capacity() * sizeof(Edge) + state.calls.capacity() * sizeof(Call) +
           state.moves.capacity() * sizeof(int32_t);
  }
  return sum;
}

}  // namespace sluice
