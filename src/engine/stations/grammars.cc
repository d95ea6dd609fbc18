// What a request waits for, and what the next tokens may be.
#include "engine/stations/grammars.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace sluice {
namespace {

// Until the next look at new and cancelled requests.
constexpr std::chrono::milliseconds kLongestWait{5};

}  // namespace

// A grammar that was compiled before is ready at once.
void Grammars::begin(Sequence& sequence) {
  const auto& structured = sequence.params.structured;
  if (!structured) return;
  GrammarWorkshop& workshop = front_.workshop();
  GrammarOrderPtr order = workshop.read(*structured);
  workshop.compile(order);
  sequence.grammar.guide = std::make_shared<Guide>(
      Guide::Parts{.order = order,
                   .vocab_size = front_.config().vocab_size,
                   .end_ids = front_.config().eos_ids,
                   .thought_begin = front_.tokenizer().token_id(structured->thought_begin),
                   .thought_end = front_.tokenizer().token_id(structured->thought_end),
                   .starts_in_thought = structured->starts_in_thought},
      sequence.params);
  pending_.push_back({.sequence = &sequence, .order = std::move(order), .asked_ns = now_ns_()});
}

std::vector<Grammars::Failure> Grammars::take_failed() {
  std::vector<Failure> failed;
  std::erase_if(pending_, [&](const Pending& p) { return take_compiled(p, failed); });
  workers_.add(std::exchange(new_orders_, {}));
  take_failed_masks(failed);
  return failed;
}

// The masks of the first token are made before the pass that draws it, since the first ones of a
// grammar take longest. A compilation that runs goes on after its time: nothing can stop it, and
// others wait for it.
bool Grammars::take_compiled(const Pending& pending, std::vector<Failure>& failed) {
  Sequence& sequence = *pending.sequence;
  const bool is_done = pending.order->is_done();
  if (is_done && pending.order->grammar()) {
    if (!sequence.grammar.masks) order(sequence, order_of(sequence, 0, 1));
    return true;
  }
  const std::chrono::nanoseconds waited(now_ns_() - pending.asked_ns);
  if (!is_done && waited < kLongestCompilation) return false;
  failed.push_back(
      {.id = sequence.id,
       .error = is_done ? pending.order->error().message()
                        : fmt::format("structured output: its grammar is not compiled after {} s; "
                                      "give a smaller one",
                                      kLongestCompilation.count())});
  return true;
}

// Masks that are late stay in the list.
void Grammars::take_failed_masks(std::vector<Failure>& failed) {
  std::erase_if(ordered_, [&](const Ordered& ordered) {
    const MaskOrder& order = *ordered.order;
    if (order.is_overdue()) {
      failed.push_back({.id = ordered.id,
                        .error = fmt::format("structured output: the tokens that it allows are not "
                                             "known after {} s; give a simpler one",
                                             MaskOrder::kLongest.count())});
      return true;
    }
    if (!order.is_done()) return false;
    if (!order.error().empty()) failed.push_back({.id = ordered.id, .error = order.error()});
    return true;
  });
}

bool Grammars::wait() {
  const auto is_late = [](const Ordered& ordered) { return !ordered.order->is_done(); };
  const auto late = std::ranges::find_if(ordered_, is_late);
  if (late != ordered_.end()) {
    late->order->wait_until(MaskOrder::Clock::now() + kLongestWait);
    return true;
  }
  if (pending_.empty()) return false;
  front_.workshop().wait(kLongestWait);
  return true;
}

void Grammars::forget(SequenceId id) {
  std::erase_if(pending_, [id](const Pending& pending) { return pending.sequence->id == id; });
  std::erase_if(ordered_, [id](const Ordered& ordered) { return ordered.id == id; });
}

void Grammars::order_masks(Batch& batch) {
  for (const ScheduledSequence& scheduled : batch.sequences) {
    Sequence& sequence = *scheduled.sequence;
    if (!sequence.grammar.guide || !scheduled.wants_token) continue;
    order(sequence, order_of(sequence, scheduled.num_ahead, scheduled.num_sampled()));
  }
  if (new_orders_.empty()) return;
  batch.when_enqueued = [this] { workers_.add(std::exchange(new_orders_, {})); };
}

// Null in two cases. The newest order has these masks: it was made before the pass, or was late for
// the last one. Or it is not done: it is overdue, its worker still uses the guide, and the sequence
// will end.
std::shared_ptr<MaskOrder> Grammars::order_of(const Sequence& sequence, int64_t first,
                                              int64_t count) {
  MaskOrder::Place place{.num_tokens = sequence.num_tokens(),
                         .drafts = sequence.draft.tokens,
                         .first = first,
                         .count = count};
  const std::shared_ptr<MaskOrder>& newest = sequence.grammar.masks;
  if (newest && (!newest->is_done() || newest->covers(place))) return nullptr;
  return std::make_shared<MaskOrder>(sequence.grammar.guide, std::move(place));
}

void Grammars::order(Sequence& sequence, std::shared_ptr<MaskOrder> order) {
  if (!order) return;
  sequence.grammar.masks = order;
  ordered_.push_back({.id = sequence.id, .order = order});
  new_orders_.push_back(std::move(order));
}

// Before memory is reserved for them. Late masks are made for a draft already: another one would
// have to be waited for again.
void Grammars::cut_drafts(Sequence& sequence) {
  if (!sequence.grammar.guide || sequence.grammar.has_pending_masks()) return;
  std::vector<int32_t>& drafts = sequence.draft.tokens;
  drafts.resize(sequence.grammar.guide->num_allowed(drafts));
  const std::shared_ptr<MaskOrder>& newest = sequence.grammar.masks;
  if (newest && newest->was_late()) drafts.resize(newest->num_alike(sequence.num_tokens(), drafts));
}

}  // namespace sluice
