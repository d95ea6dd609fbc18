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
  sequence.grammar.guide = std::make_unique<Guide>(
      Guide::Parts{.order = order,
                   .vocab_size = front_.config().vocab_size,
                   .end_ids = front_.config().eos_ids,
                   .thought_begin = front_.tokenizer().token_id(structured->thought_begin),
                   .thought_end = front_.tokenizer().token_id(structured->thought_end),
                   .starts_in_thought = structured->starts_in_thought},
      sequence.params);
  pending_.push_back({.id = sequence.id, .order = std::move(order), .asked_ns = now_ns_()});
}

// The compilation that runs goes on after its time: nothing can stop it, and others wait for it.
std::vector<Grammars::Failure> Grammars::take_failed() {
  std::vector<Failure> failed;
  std::erase_if(pending_, [&](const Pending& pending) {
    const bool is_done = pending.order->is_done();
    if (is_done && pending.order->grammar()) return true;
    const std::chrono::nanoseconds waited(now_ns_() - pending.asked_ns);
    if (!is_done && waited < kLongestCompilation) return false;
    failed.push_back(
        {.id = pending.id,
         .error = is_done ? pending.order->error().message()
                          : fmt::format("structured output: its grammar is not compiled after {} "
                                        "s; give a smaller one",
                                        kLongestCompilation.count())});
    return true;
  });
  return failed;
}

bool Grammars::wait() {
  if (pending_.empty()) return false;
  front_.workshop().wait(kLongestWait);
  return true;
}

void Grammars::forget(SequenceId id) {
  std::erase_if(pending_, [id](const Pending& pending) { return pending.id == id; });
}

// A row without a token to choose would fail the pass of all.
std::vector<Grammars::Failure> Grammars::mask(Batch& batch) {
  std::vector<Failure> failed;
  std::erase_if(batch.sequences, [&](const ScheduledSequence& scheduled) {
    Sequence& sequence = *scheduled.sequence;
    if (!sequence.grammar.guide || !scheduled.wants_token) return false;
    const bool leaves_token = sequence.grammar.guide->make_masks(
        sequence.draft.tokens, scheduled.num_ahead, scheduled.num_sampled());
    if (leaves_token) return false;
    failed.push_back({.id = sequence.id,
                      .error = "structured output: allowed_token_ids and logit_bias leave no token "
                               "that it allows here; ban fewer"});
    return true;
  });
  return failed;
}

// Before memory is reserved for them.
void Grammars::cut_drafts(Sequence& sequence) {
  if (!sequence.grammar.guide) return;
  std::vector<int32_t>& drafts = sequence.draft.tokens;
  drafts.resize(sequence.grammar.guide->num_allowed(drafts));
}

}  // namespace sluice
