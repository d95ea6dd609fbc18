// Where snapshots are taken, and from which one a sequence goes on.
#include "engine/kv/state_snapshots.h"

#include <algorithm>

#include "core/error.h"

namespace sluice {
namespace {

// The end of a prompt of a chat is the beginning of an answer, some tokens that the next turn
// replaces where it drops the thought.
constexpr int64_t kAnswerHeadTokens = 16;

// Of the snapshots that decoding leaves one stays for each so many tokens.
constexpr int64_t kDecodedTokens = 4096;

int64_t whole(int64_t num_tokens, int64_t granule) {
  return std::max<int64_t>(num_tokens, 0) / granule * granule;
}

}  // namespace

StateSnapshots::StateSnapshots(const SnapshotSizes& sizes, const BlockManager& blocks,
                               KvFollower& follower)
    : blocks_(blocks),
      follower_(follower),
      granule_(blocks.hit_granule_tokens()),
      interval_(std::max(whole(sizes.interval_tokens, granule_), granule_)),
      table_(sizes.num_places) {}

int64_t StateSnapshots::next_border(const Sequence& sequence, int64_t num_done) const {
  return border_after(sequence, num_done).value_or(sequence.num_tokens());
}

// The least of all places: every interval; before the head of the answer, and a block before that
// for texts that divide into other tokens there; the end of a pinned prompt; where others differ.
std::optional<int64_t> StateSnapshots::border_after(const Sequence& sequence,
                                                    int64_t num_done) const {
  if (!exist()) return std::nullopt;
  const int64_t end =
      whole(std::min(sequence.num_tokens(), blocks_.num_shareable_tokens(sequence.num_tokens())),
            granule_);
  int64_t border = end + 1;
  const auto add = [&](int64_t place) {
    if (place > num_done && place < border) border = place;
  };
  const int64_t head = whole(sequence.num_prompt_tokens - kAnswerHeadTokens, granule_);
  add((num_done / interval_ + 1) * interval_);
  add(head - granule_);
  add(head);
  if (!sequence.stored.pin.empty()) add(whole(sequence.num_prompt_tokens, granule_));
  for (const int64_t place : sequence.states.wanted) add(place);
  return border <= end ? std::optional(border) : std::nullopt;
}

void StateSnapshots::want(Sequence& sequence, int64_t num_tokens) const {
  std::vector<int64_t>& wanted = sequence.states.wanted;
  const int64_t place = whole(num_tokens, granule_);
  if (!exist() || place == 0 || std::ranges::find(wanted, place) != wanted.end()) return;
  wanted.push_back(place);
}

void StateSnapshots::begun(Sequence& sequence) {
  sequence.states.newest_decoded = 0;
  if (!exist() || sequence.kv.num_sealed_blocks() == 0) return;
  const bool resumes = resume(sequence);
  SLUICE_CHECK(resumes, "sequence {} begins without a state", sequence.id.value);
}

bool StateSnapshots::resume(Sequence& sequence) {
  const int64_t prefix = blocks_.prefix_id(sequence.kv.newest_full());
  if (!contains(prefix)) return false;
  table_.use(prefix);
  follower_.restore_state(sequence.id, table_.find(prefix), sequence.kv.num_tokens());
  return true;
}

int64_t StateSnapshots::committed(Sequence& sequence, PassKind kind) {
  const int64_t num_tokens = sequence.kv.num_tokens();
  if (!exist() || num_tokens == 0 || num_tokens % granule_ != 0) return 0;
  if (!blocks_.is_findable(sequence.kv.newest_full())) return 0;
  return kind.is_prefill ? save_prompt(sequence) : save_decoded(sequence);
}

int64_t StateSnapshots::save_prompt(Sequence& sequence) {
  const int64_t num_tokens = sequence.kv.num_tokens();
  if (border_after(sequence, num_tokens - 1) != num_tokens) return 0;
  const int64_t prefix = blocks_.prefix_id(sequence.kv.newest_full());
  return save(sequence, prefix) ? prefix : 0;
}

// Nobody knows where an answer will end, so each full block has one, in place of that before it.
int64_t StateSnapshots::save_decoded(Sequence& sequence) {
  int64_t& newest = sequence.states.newest_decoded;
  const bool is_loose = table_.contains(newest) && table_.is_loose(newest);
  if (is_loose && !is_kept(sequence.kv.num_tokens() - granule_)) table_.drop(newest);
  const int64_t prefix = blocks_.prefix_id(sequence.kv.newest_full());
  newest = save(sequence, prefix) ? prefix : 0;
  return is_kept(sequence.kv.num_tokens()) ? newest : 0;
}

// The first place at or after each multiple.
bool StateSnapshots::is_kept(int64_t num_tokens) const {
  const int64_t every = std::min(kDecodedTokens, interval_);
  return num_tokens / every > (num_tokens - granule_) / every;
}

// False if another sequence has left one there, or no place can be had.
bool StateSnapshots::save(Sequence& sequence, int64_t prefix) {
  if (table_.contains(prefix)) {
    table_.use(prefix);
    return false;
  }
  const int64_t before = deepest_before(sequence.kv, sequence.kv.num_sealed_blocks() - 1);
  const SnapshotId place = table_.add(prefix, before, sequence.kv.num_tokens());
  if (!place.valid()) return false;
  follower_.save_state(sequence.id, place);
  return true;
}

StateSnapshots::Held StateSnapshots::hold_deepest(std::span<const BlockId> blocks) {
  for (size_t i = blocks.size(); i > 0; --i) {
    const int64_t prefix = blocks_.prefix_id(blocks[i - 1]);
    if (!contains(prefix)) continue;
    table_.hold(prefix);
    return {.num_blocks = i, .prefix = prefix};
  }
  return {};
}

SnapshotId StateSnapshots::hold(int64_t prefix) {
  table_.hold(prefix);
  return table_.find(prefix);
}

SnapshotId StateSnapshots::begin_read(const Sequence& sequence) {
  const SequenceKv& kv = sequence.kv;
  const int64_t prefix = blocks_.prefix_id(kv.newest_full());
  if (table_.contains(prefix)) return {};
  const int64_t before = deepest_before(kv, kv.num_sealed_blocks() - 1);
  const SnapshotId place = table_.add(prefix, before, kv.num_tokens());
  if (!place.valid()) return place;
  table_.hold(prefix);
  reading_.insert(prefix);
  return place;
}

void StateSnapshots::end_read(int64_t prefix, bool is_whole) {
  table_.unhold(prefix);
  reading_.erase(prefix);
  if (!is_whole) table_.drop(prefix);
}

// Of the prefixes of the first blocks; 0 if none has a snapshot.
int64_t StateSnapshots::deepest_before(const SequenceKv& kv, int32_t num_blocks) const {
  for (auto i = static_cast<size_t>(num_blocks); i > 0; --i) {
    const int64_t prefix = blocks_.prefix_id(kv.blocks()[i - 1].id);
    if (table_.contains(prefix)) return prefix;
  }
  return 0;
}

}  // namespace sluice
