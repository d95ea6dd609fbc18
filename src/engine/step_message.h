// StepMessage: a pass as a plain value: what a rank needs to run it, and to keep its copy of block
// tables.
//
// Rank makes one from each Batch and hands it to its Runner in place. A rank elsewhere gets the
// same messages, completed by StepRecorder; it needs no request, no clock and no scheduler to
// compute the same bits. What only the first rank does is not in it: sampling, scores, progress.
// Thread rule: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/pass_kind.h"
#include "core/ids.h"
#include "engine/schedule/scheduler.h"

namespace sluice {

// What happened to blocks between two passes; calls of KvFollower.
struct KvEvent {
  enum class Kind { kCommitted, kDropDrafts, kRelease, kDiscard, kSaveState, kRestoreState };
  Kind kind = Kind::kDiscard;
  SequenceId sequence;     // but for kDiscard
  BlockId block;           // of kDiscard; of kCommitted: the newest full one
  SnapshotId snapshot;     // of kSaveState and kRestoreState
  int64_t num_tokens = 0;  // with valid KV; of kCommitted, kDropDrafts and kRestoreState
};

// A change of a block table: blocks after the first `num_kept` are replaced by the next
// `num_new_blocks` of StepMessage::new_blocks.
struct KvTableChange {
  SequenceId sequence;
  int64_t num_kept = 0;
  int64_t num_new_blocks = 0;
  int64_t num_tokens = 0;
  int64_t prefill_tokens = 0;
};

struct StepMessage {
  static constexpr int32_t kVersion = 3;

  // A sequence's share of the pass.
  struct Span {
    SequenceId id;
    int64_t num_rows = 0;      // after its valid tokens and `num_ahead` more
    int64_t num_ahead = 0;     // rows of earlier draft passes of the step
    int64_t num_sampled = 0;   // the last rows, whose logits are computed
    int64_t num_measured = 0;  // AuditSlot::num_measured_tokens
  };

  // Tokens of all spans, and those whose logits are computed.
  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_sampled() const;

  int32_t version = kVersion;
  PassKind kind;
  bool is_watched = false;  // the first rank can cancel the pass: others enqueue what it allows
  std::vector<Span> spans;
  std::vector<int32_t> token_ids;          // of all rows, span by span
  std::vector<ExpectedSequence> expected;  // of the next pass

  // Since the message before, for a rank with tables of its own; empty for the first rank.
  std::vector<KvEvent> events;
  std::vector<KvTableChange> table_changes;  // after the events
  std::vector<BlockId> new_blocks;
};

// Writes the pass of `batch` into `message`, whose vectors keep their capacity; nothing else of it.
void describe_pass(const Batch& batch, StepMessage& message);

}  // namespace sluice
