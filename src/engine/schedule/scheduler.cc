// Prefill and decode in turn; rows by what is left, memory by arrival; preemption takes the newest.
#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <tuple>

#include "kv/kv_layout.h"

namespace sluice {
namespace {

// Puts a sequence into a queue that is sorted by id.
template <typename Queue>
void insert_by_id(Queue& queue, std::unique_ptr<Sequence> sequence) {
  const auto is_newer = [](SequenceId id, const auto& other) { return id < other->id; };
  const auto at = std::upper_bound(queue.begin(), queue.end(), sequence->id, is_newer);
  queue.insert(at, std::move(sequence));
}

// Takes the sequence with this id out of a queue; null if it has none.
template <typename Queue>
std::unique_ptr<Sequence> take_by_id(Queue& queue, SequenceId id) {
  const auto is_it = [id](const auto& sequence) { return sequence->id == id; };
  const auto it = std::find_if(queue.begin(), queue.end(), is_it);
  if (it == queue.end()) return nullptr;
  std::unique_ptr<Sequence> sequence = std::move(*it);
  queue.erase(it);
  return sequence;
}

bool is_loading(const std::unique_ptr<Sequence>& sequence) { return sequence->stored.is_loading; }
bool awaits_grammar(const std::unique_ptr<Sequence>& sequence) {
  return sequence->grammar.is_waiting();
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, KvStation& kv) : limits_(limits), kv_(kv) {
  SLUICE_CHECK(limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0 &&
               limits.prefill_chunk_tokens > 0);
}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  sequence->salt = kv_.blocks().salt(sequence->params.cache_salt);
  insert_by_id(waiting_, std::move(sequence));
}

Batch Scheduler::schedule() {
  SLUICE_CHECK(has_unfinished());
  take_back();
  // Asked before the batch is made: another thread may end the wait at any time.
  const bool awaits_any_grammar = std::ranges::any_of(running_, awaits_grammar) ||
                                  std::ranges::any_of(waiting_, awaits_grammar);
  Batch batch;
  if (decode_is_due()) {
    batch = decode_batch();
    if (batch.sequences.empty()) decode_ns_due_ = 0;  // no sequence could decode
  }
  if (batch.sequences.empty()) batch = prefill_batch();
  if (batch.sequences.empty()) batch = decode_batch();
  // The pool holds at least one longest request, so some sequence can run unless others hold
  // blocks.
  const bool may_wait = awaits_any_grammar || kv_.blocks().num_other_holds() > 0 ||
                        std::ranges::any_of(running_, is_loading);
  SLUICE_CHECK(!batch.sequences.empty() || may_wait, "{} waiting, {} running", waiting_.size(),
               running_.size());
  if (!batch.sequences.empty()) last_was_prefill_ = batch.kind.is_prefill;
  return batch;
}

// Sequences that begin again find what they have in the prefix cache, as far as they can go on.
void Scheduler::take_back() {
  for (size_t i = 0; i < running_.size();) {
    if (!running_[i]->stored.begins_again) {
      ++i;
      continue;
    }
    std::unique_ptr<Sequence> sequence = take_by_id(running_, running_[i]->id);
    sequence->stored.begins_again = false;
    kv_.release(*sequence);
    insert_by_id(waiting_, std::move(sequence));
  }
}

// A new request ends the time for decoding, once: it has not missed a pass yet.
bool Scheduler::decode_is_due() {
  if (last_was_prefill_) return true;
  if (decode_ns_due_ <= 0) return false;
  const auto is_new = [](const Candidate& c) { return c.sequence->queue.num_passes_missed == 0; };
  return !std::ranges::any_of(admissible(), is_new);
}

QueueSizes Scheduler::queue_sizes() const {
  QueueSizes sizes{.num_running = std::ssize(running_), .num_waiting = std::ssize(waiting_)};
  for (const auto& sequence : waiting_) {
    sizes.num_waiting_prompt_tokens += sequence->num_prompt_tokens;
  }
  return sizes;
}

void Scheduler::measured(const Batch& batch, int64_t duration_ns) {
  if (!batch.kind.is_prefill) {
    last_decode_ns_ = duration_ns;
    decode_ns_due_ = std::max<int64_t>(decode_ns_due_ - duration_ns, 0);
    return;
  }
  // A pass that interrupted decoding for a new request leaves it the rest of its time; without the
  // limit a flood of requests would collect so much that a long prompt stands still.
  const int64_t left_ns = std::min(decode_ns_due_, limits_.max_stall_ns);
  decode_ns_due_ = limits_.max_stall_ns > 0 ? left_ns + duration_ns / 2 * 3 : 0;
  int64_t position_sum = 0;  // over all rows
  for (const ScheduledSequence& s : batch.sequences) {
    position_sum += s.num_rows * (s.sequence->kv.num_tokens() + s.num_rows / 2);
  }
  rates_.measured(position_sum / batch.num_rows(), batch.num_rows(), duration_ns);
}

// The next spans of prompts, as far as the pass has room; empty if no prompt is left or none fits.
// All blocks of a prompt are reserved when it is admitted, so two half-done prompts can never wait
// for each other's memory.
Batch Scheduler::prefill_batch() {
  Batch batch{.kind = Phase::kPrefill, .sequences = {}};
  std::vector<Candidate> candidates = admissible();
  for (const auto& sequence : running_) {
    if (sequence->kv.prefill_done() || sequence->stored.is_loading) continue;
    candidates.push_back({.sequence = sequence.get(), .num_done = sequence->kv.num_tokens()});
  }
  sort(candidates);
  PassRoom room(limits_, rates_);
  for (const Candidate& candidate : candidates) {
    Sequence& sequence = *candidate.sequence;
    const int64_t num_rows = take_rows(candidate, room);
    if (num_rows == 0) continue;
    batch.sequences.push_back({.sequence = &sequence,
                               .num_rows = num_rows,
                               .wants_token = num_rows == sequence.num_pending()});
  }
  if (batch.sequences.empty()) return batch;
  for (const Candidate& candidate : candidates) ++candidate.sequence->queue.num_passes_missed;
  for (const ScheduledSequence& scheduled : batch.sequences) {
    scheduled.sequence->queue.num_passes_missed = 0;
  }
  return batch;
}

// The waiting sequences that could all be admitted now, in order of arrival. The first one that
// does not fit ends the list: small requests could otherwise delay a large one without end.
std::vector<Scheduler::Candidate> Scheduler::admissible() {
  std::vector<Candidate> result;
  int64_t num_seats = limits_.max_num_seqs - std::ssize(running_);
  int64_t num_free = kv_.blocks().num_free_blocks();
  for (const auto& sequence : waiting_) {
    if (num_seats == 0) break;
    if (maker_of(*sequence) != nullptr) continue;
    const PrefixMatch match = kv_.match(*sequence);
    if (hold(*sequence, match.num_tokens)) continue;
    --num_seats;
    num_free -= match.num_free_blocks;
    num_free -=
        blocks_for_tokens(sequence->num_tokens() - match.num_tokens, kv_.blocks().block_tokens());
    if (num_free < 0) break;
    result.push_back({.sequence = sequence.get(), .num_done = match.num_tokens, .waits = true});
  }
  return result;
}

// The sequence that holds up `sequence`; null if none does. Asked at every step, so it compares no
// tokens.
const Sequence* Scheduler::maker_of(const Sequence& sequence) const {
  const Sequence* maker = find_running(sequence.queue.held_by);
  return maker != nullptr && maker->kv.num_tokens() < sequence.queue.held_until ? maker : nullptr;
}

// Holds a waiting sequence if a running one is about to compute the block after the `num_cached`
// tokens that are cached, until the last block that both share. (Only prefill counts: a block that
// decoding fills may take minutes.) The maker has all of its memory, so it never waits for a held
// sequence.
bool Scheduler::hold(Sequence& sequence, int64_t num_cached) const {
  sequence.queue.held_by = {};
  if (sequence.needs_scores()) return false;  // it computes its prompt itself
  for (const auto& maker : running_) {
    if (maker->kv.prefill_done() || maker->salt != sequence.salt) continue;
    const int64_t num_shared =
        kv_.blocks().match_prefill(sequence.tokens, num_cached, maker->tokens);
    if (num_shared <= maker->kv.num_tokens()) continue;
    sequence.queue.held_by = maker->id;
    sequence.queue.held_until = num_shared;
    kv_.snapshots().want(*maker, num_shared);
    return true;
  }
  return false;
}

// Who missed too many passes comes first, oldest first; then who has the fewest tokens left.
void Scheduler::sort(std::vector<Candidate>& candidates) {
  const auto rank = [](const Candidate& c) {
    const bool is_starved = c.sequence->queue.num_passes_missed >= kMaxPassesMissed;
    return std::tuple(!is_starved, is_starved ? 0 : c.num_left(), c.sequence->id);
  };
  std::ranges::sort(candidates, {}, rank);
}

// Tokens of a prompt that may have rows now, of which `num_done` have been computed. A span ends
// where a snapshot of states is wanted. The last token gives another, which may have to wait for a
// grammar: what comes before it ends where spans end.
int64_t Scheduler::end_of_rows(const Sequence& sequence, int64_t num_done) const {
  const int64_t border = kv_.snapshots().next_border(sequence, num_done);
  if (!sequence.grammar.is_waiting()) return border;
  const int64_t align = std::max(limits_.span_align_tokens, limits_.state_align_tokens);
  return std::min(border, (sequence.num_tokens() - 1) / align * align);
}

// Takes the candidate's next span from the room of a pass, and admits the candidate if it waits.
// Blocks of a cached prefix are taken instead of computed. 0 if there is no room.
int64_t Scheduler::take_rows(const Candidate& candidate, PassRoom& room) {
  Sequence& sequence = *candidate.sequence;
  if (!candidate.waits) {
    return room.take(candidate.num_done, end_of_rows(sequence, candidate.num_done));
  }
  // Again: those that were admitted in this pass may have evicted blocks, or compute the same ones.
  const PrefixMatch match = kv_.match(sequence);
  const int64_t num_cached = match.num_tokens;
  if (hold(sequence, num_cached)) return 0;
  if (match.num_kv_tokens > num_cached) kv_.snapshots().want(sequence, match.num_kv_tokens);
  const int64_t num_rows = room.take(num_cached, end_of_rows(sequence, num_cached));
  if (num_rows == 0) return 0;
  if (!kv_.begin(sequence, sequence.num_tokens() - num_cached)) return 0;
  insert_by_id(running_, take_by_id(waiting_, sequence.id));
  return sequence.stored.is_loading ? 0 : num_rows;
}

// One row for every sequence whose prompt is computed. Takes blocks from the newest sequences while
// the older ones cannot reserve one; the loop ends early if it preempts the sequence that it
// serves. Empty if no sequence can decode: then one with a part of its prompt holds the memory.
Batch Scheduler::decode_batch() {
  Batch batch{.kind = Phase::kDecode, .sequences = {}};
  // Oldest first, so that a preempted sequence is never one that is in the batch already.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i]->kv.prefill_done() || running_[i]->grammar.is_waiting()) continue;
    while (i < running_.size() && !kv_.reserve(*running_[i], 1)) preempt_newest();
    if (i < running_.size()) {
      batch.sequences.push_back(
          {.sequence = running_[i].get(), .num_rows = 1, .wants_token = true});
    }
  }
  return batch;
}

std::vector<ExpectedSequence> Scheduler::expect_next(const Batch& batch) const {
  const bool is_decode = !batch.kind.is_prefill;
  // A step after one without drafts will probably have none either.
  const auto has_drafts = [](const ScheduledSequence& s) { return s.num_drafts > 0; };
  const bool verifies = batch.kind.is_verify && std::ranges::none_of(batch.sequences, has_drafts);
  std::vector<Candidate> prefilling;
  std::vector<ExpectedSequence> decoding;
  for (const auto& sequence : running_) {
    if (sequence->stored.is_loading) continue;
    const auto is_it = [&](const ScheduledSequence& s) { return s.sequence == sequence.get(); };
    const auto scheduled = std::find_if(batch.sequences.begin(), batch.sequences.end(), is_it);
    const bool runs = scheduled != batch.sequences.end();
    // Tokens with KV after the batch is committed.
    const int64_t num_done = sequence->kv.num_tokens() + (runs ? scheduled->num_rows : 0);
    if (num_done < sequence->kv.prefill_tokens()) {
      prefilling.push_back({.sequence = sequence.get(), .num_done = num_done});
    } else if (!runs || sequence->num_generated() + 1 < sequence->params.max_tokens) {
      // A block that this decode step fills is sealed only at commit, so it is not expected yet.
      decoding.push_back({.id = sequence->id,
                          .num_sealed_tokens = is_decode ? sequence->kv.num_tokens() : num_done,
                          .is_verify = verifies});
    }
  }
  const bool decodes_on = !is_decode || decode_ns_due_ - last_decode_ns_ > 0;  // after this step
  if (decodes_on && !decoding.empty()) return decoding;
  if (!prefilling.empty()) return expect_prefill(std::move(prefilling));
  // A waiting sequence is admitted as soon as fewer than max_num_seqs run, if memory allows.
  const bool has_room = static_cast<int32_t>(decoding.size()) < limits_.max_num_seqs;
  return waiting_.empty() || !has_room ? decoding : std::vector<ExpectedSequence>{};
}

// The spans of a prefill pass without new sequences.
std::vector<ExpectedSequence> Scheduler::expect_prefill(std::vector<Candidate> candidates) const {
  sort(candidates);
  std::vector<ExpectedSequence> expected;
  PassRoom room(limits_, rates_);
  for (const Candidate& candidate : candidates) {
    const int64_t end = kv_.snapshots().next_border(*candidate.sequence, candidate.num_done);
    const int64_t num_rows = room.take(candidate.num_done, end);
    if (num_rows == 0) continue;
    expected.push_back({.id = candidate.sequence->id,
                        .num_sealed_tokens = candidate.num_done,
                        .num_rows = num_rows});
  }
  return expected;
}

// The sequence keeps its tokens; its KV is computed again when it is admitted.
void Scheduler::preempt_newest() {
  SLUICE_CHECK(!running_.empty());
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  kv_.release(*sequence);
  insert_by_id(waiting_, std::move(sequence));
  ++num_preemptions_;
}

std::vector<SequenceId> Scheduler::cancelled_ids() const {
  std::vector<SequenceId> ids;
  const auto look = [&](const std::unique_ptr<Sequence>& sequence) {
    if (sequence->is_cancelled()) ids.push_back(sequence->id);
  };
  std::ranges::for_each(running_, look);
  std::ranges::for_each(waiting_, look);
  return ids;
}

std::unique_ptr<Sequence> Scheduler::remove(SequenceId id) {
  std::unique_ptr<Sequence> found = take_by_id(running_, id);
  if (found) {
    kv_.release(*found);
  } else {
    found = take_by_id(waiting_, id);
  }
  return found;
}

Sequence* Scheduler::find_running(SequenceId id) const {
  const auto is_it = [id](const auto& sequence) { return sequence->id == id; };
  const auto it = std::find_if(running_.begin(), running_.end(), is_it);
  return it == running_.end() ? nullptr : it->get();
}

}  // namespace sluice
