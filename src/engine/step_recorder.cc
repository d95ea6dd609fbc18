// Differences of block tables, sent and applied.
#include "engine/step_recorder.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace sluice {

// ---- StepRecorder ----------------------------------------------------------------------------

// Each event is noted and passed on at once: the first rank must not wait for a pass, whose loads
// may need a block that an event writes back.
void StepRecorder::committed(SequenceId sequence, int64_t num_tokens, BlockId newest_full) {
  events_.push_back({.kind = KvEvent::Kind::kCommitted,
                     .sequence = sequence,
                     .block = newest_full,
                     .num_tokens = num_tokens});
  follower_->committed(sequence, num_tokens, newest_full);
}

void StepRecorder::drop_drafts(SequenceId sequence, int64_t num_tokens) {
  events_.push_back(
      {.kind = KvEvent::Kind::kDropDrafts, .sequence = sequence, .num_tokens = num_tokens});
  follower_->drop_drafts(sequence, num_tokens);
}

// The sequence may begin again after a preemption, with other blocks: its table is then sent anew.
void StepRecorder::release(SequenceId sequence) {
  events_.push_back({.kind = KvEvent::Kind::kRelease, .sequence = sequence});
  sent_.erase(sequence);
  follower_->release(sequence);
}

void StepRecorder::discard(BlockId id) {
  events_.push_back({.kind = KvEvent::Kind::kDiscard, .block = id});
  follower_->discard(id);
}

void StepRecorder::save_state(SequenceId sequence, SnapshotId place) {
  events_.push_back({.kind = KvEvent::Kind::kSaveState, .sequence = sequence, .snapshot = place});
  follower_->save_state(sequence, place);
}

void StepRecorder::restore_state(SequenceId sequence, SnapshotId place, int64_t num_tokens) {
  events_.push_back({.kind = KvEvent::Kind::kRestoreState,
                     .sequence = sequence,
                     .snapshot = place,
                     .num_tokens = num_tokens});
  follower_->restore_state(sequence, place, num_tokens);
}

// Of the expected sequences, most are in the pass as well, whose second change is empty. Others
// have changed since they were sent, which costs their new blocks.
void StepRecorder::complete(StepMessage& message, const KvTables& tables) {
  message.events = std::exchange(events_, {});
  message.table_changes.clear();
  message.new_blocks.clear();
  for (const StepMessage::Span& span : message.spans) {
    add_table(message, span.id, tables.view(span.id));
  }
  for (const ExpectedSequence& expected : message.expected) {
    add_table(message, expected.id, tables.view(expected.id));
  }
  on_message_(message);
}

// For who asks another rank about blocks between two passes. Tables come with the next pass.
void StepRecorder::send_events() {
  if (events_.empty()) return;
  StepMessage message;
  message.events = std::exchange(events_, {});
  on_message_(message);
}

// Tables mostly grow at their end, by one block in some tens of steps, so a message has few ids.
// Where drafts were dropped or a tail was replaced, it has those after the first that differs.
void StepRecorder::add_table(StepMessage& message, SequenceId id, const KvView& now) {
  std::vector<BlockId>& sent = sent_[id];
  const auto differ =
      std::ranges::mismatch(now.blocks, sent, {}, [](const SequenceBlock& b) { return b.id; });
  const auto num_kept = differ.in1 - now.blocks.begin();
  message.table_changes.push_back({.sequence = id,
                                   .num_kept = num_kept,
                                   .num_new_blocks = std::ssize(now.blocks) - num_kept,
                                   .num_tokens = now.num_tokens,
                                   .prefill_tokens = now.prefill_tokens});
  sent.resize(static_cast<size_t>(num_kept));
  for (const SequenceBlock& block : now.blocks.subspan(static_cast<size_t>(num_kept))) {
    message.new_blocks.push_back(block.id);
    sent.push_back(block.id);
  }
}

// ---- KvMirror --------------------------------------------------------------------------------

namespace {

void tell(const KvEvent& event, KvFollower& follower) {
  switch (event.kind) {
    case KvEvent::Kind::kCommitted:
      return follower.committed(event.sequence, event.num_tokens, event.block);
    case KvEvent::Kind::kDropDrafts:
      return follower.drop_drafts(event.sequence, event.num_tokens);
    case KvEvent::Kind::kRelease:
      return follower.release(event.sequence);
    case KvEvent::Kind::kDiscard:
      return follower.discard(event.block);
    case KvEvent::Kind::kSaveState:
      return follower.save_state(event.sequence, event.snapshot);
    case KvEvent::Kind::kRestoreState:
      return follower.restore_state(event.sequence, event.snapshot, event.num_tokens);
  }
}

}  // namespace

// Events come first, since they were told to the first rank before its tables were read. A block's
// count of valid tokens follows from the table's: all but the last are full.
void KvMirror::apply(const StepMessage& message, KvFollower& follower) {
  if (message.version != StepMessage::kVersion) {
    fail(ErrorCode::kInvalidArgument,
         "a step message has version {}, this program has {}; run one program on all ranks",
         message.version, StepMessage::kVersion);
  }
  for (const KvEvent& event : message.events) {
    tell(event, follower);
    if (event.kind == KvEvent::Kind::kRelease) tables_.erase(event.sequence);
  }
  size_t next = 0;
  for (const KvTableChange& change : message.table_changes) {
    Table& table = tables_[change.sequence];
    table.num_tokens = change.num_tokens;
    table.prefill_tokens = change.prefill_tokens;
    table.blocks.resize(static_cast<size_t>(change.num_kept));
    for (int64_t i = 0; i < change.num_new_blocks; ++i) {
      table.blocks.push_back({.id = message.new_blocks[next++]});
    }
    int64_t num_left = change.num_tokens;
    for (SequenceBlock& block : table.blocks) {
      block.num_valid_tokens =
          static_cast<int32_t>(std::clamp<int64_t>(num_left, 0, block_tokens_));
      num_left -= block_tokens_;
    }
  }
}

KvView KvMirror::view(SequenceId id) const {
  const auto found = tables_.find(id);
  SLUICE_CHECK(found != tables_.end(), "sequence {}", id.value);
  const Table& table = found->second;
  return {table.blocks, table.num_tokens, table.prefill_tokens};
}

}  // namespace sluice
