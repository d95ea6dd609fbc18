// StepRecorder completes each StepMessage with what another rank needs, and KvMirror applies it
// there.
//
// The recorder stands between KvStation and the first rank's Residency: it passes events on at once
// and notes them. A message is complete when it has the events and the changes of tables since the
// one before; a rank that starts with empty tables and runs all messages in order then has the same
// blocks and the same bits. What the KV store reads into blocks is in no message: RankPorts brings
// it to other ranks. Thread rule: the engine's thread.
#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "engine/step_message.h"
#include "kv/kv_follower.h"
#include "kv/kv_tables.h"

namespace sluice {

class StepRecorder final : public KvFollower {
 public:
  // `on_message` gets each message before the first rank runs it; one without spans has no pass.
  using OnMessage = std::function<void(const StepMessage&)>;
  explicit StepRecorder(OnMessage on_message) : on_message_(std::move(on_message)) {}

  // Passes events on to `follower` as well. REQUIRES: it outlives this object's use.
  void follow(KvFollower& follower) { follower_ = &follower; }

  void committed(SequenceId sequence, int64_t num_tokens, BlockId newest_full) override;
  void drop_drafts(SequenceId sequence, int64_t num_tokens) override;
  void release(SequenceId sequence) override;
  void discard(BlockId id) override;
  void save_state(SequenceId sequence, SnapshotId place) override;
  void restore_state(SequenceId sequence, SnapshotId place, int64_t num_tokens) override;

  // Adds what happened since the last call, with the tables of the pass's sequences and of those
  // that the next one is expected to have.
  void complete(StepMessage& message, const KvTables& tables);
  // Sends what happened since the last message in one of its own, if something did.
  void send_events();

 private:
  void add_table(StepMessage& message, SequenceId id, const KvView& now);

  const OnMessage on_message_;
  KvFollower* follower_ = nullptr;
  std::vector<KvEvent> events_;
  std::unordered_map<SequenceId, std::vector<BlockId>> sent_;  // by running sequence
};

class KvMirror final : public KvTables {
 public:
  explicit KvMirror(int32_t block_tokens) : block_tokens_(block_tokens) {}

  // Tells `follower` the events, then changes the tables. Call it before the message's pass.
  // Errors: kInvalidArgument for a message of another version.
  void apply(const StepMessage& message, KvFollower& follower);
  KvView view(SequenceId id) const override;

 private:
  struct Table {
    std::vector<SequenceBlock> blocks;
    int64_t num_tokens = 0;
    int64_t prefill_tokens = 0;
  };

  const int32_t block_tokens_;
  std::unordered_map<SequenceId, Table> tables_;
};

}  // namespace sluice
