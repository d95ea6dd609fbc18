// count -> read, several at once -> commit in order, up to the first miss
#include "engine/store/prefix_loads.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace sluice {

// Blocks that make up a unit of what may be taken instead of computed.
size_t PrefixLoads::granule_blocks() const {
  return static_cast<size_t>(parts_.blocks.hit_granule_tokens() / parts_.blocks.block_tokens());
}

// The blocks after the cached ones, as far as they may come from elsewhere. None if the last cached
// one has no name: stored blocks would follow KV that others cannot have.
std::vector<PrefixLoads::Block> PrefixLoads::list_blocks(const Sequence& sequence) const {
  const SequenceKv& kv = sequence.kv;
  const auto block_tokens = static_cast<size_t>(parts_.blocks.block_tokens());
  const auto first = static_cast<size_t>(kv.num_sealed_blocks());
  const auto end =
      static_cast<size_t>(parts_.blocks.max_hit_tokens(kv.prefill_tokens())) / block_tokens;
  std::vector<Block> blocks;
  for (size_t i = first; i < end; ++i) {
    const auto tokens = std::span(sequence.tokens).subspan(i * block_tokens, block_tokens);
    Block block{.id = kv.blocks()[i].id, .place = {}};
    if (blocks.empty()) {
      const auto place = parts_.names.place_after(kv, i, sequence.params.cache_salt, tokens);
      if (!place) return {};
      block.place = *place;
    } else {
      const BlockPlace& before = blocks.back().place;
      block.place = {.key = next_key(before.key, tokens),
                     .parent = before.key,
                     .position = static_cast<int64_t>(i * block_tokens)};
    }
    blocks.push_back(block);
  }
  return blocks;
}

// Keys of a million tokens take some milliseconds; the file system is asked on another thread.
void PrefixLoads::begin(Sequence& sequence) {
  if (sequence.needs_scores()) return;  // it computes its prompt itself
  if (sequence.stored.num_bad_loads >= kMaxBadLoads) return;
  auto load = std::make_shared<Load>();
  load->sequence = &sequence;
  load->blocks = list_blocks(sequence);
  if (load->blocks.empty()) return;
  std::vector<StoreKey> chain;
  for (const Block& block : load->blocks) chain.push_back(block.place.key);
  sequence.stored.is_loading = true;
  loads_.emplace(sequence.id, load);
  // On the store's threads `this` may be gone already; letters are taken while it lives.
  parts_.reader.count(std::move(chain), [this, load, &mailbox = parts_.mailbox](size_t num_stored) {
    mailbox.post([this, load, num_stored] { counted(load, num_stored); });
  });
}

// No sequence waits for the reads that run: their letters give the memory back.
void PrefixLoads::abandon(const Sequence& sequence) {
  const auto found = loads_.find(sequence.id);
  if (found == loads_.end()) return;
  Load& load = *found->second;
  cut(load, load.num_committed);
  load.sequence = nullptr;
  loads_.erase(found);
}

void PrefixLoads::counted(const LoadPtr& load, size_t num_stored) {
  if (load->sequence == nullptr) return;
  load->is_counted = true;
  const size_t num_blocks = num_stored / granule_blocks() * granule_blocks();
  if (num_blocks > 0 && is_worth_it(*load, num_blocks)) {
    parts_.port.settle();
    load->end = load->num_wanted = num_blocks;
  }
  finish_if_done(load);
}

// The cost of a row grows with its position, about evenly over the blocks.
bool PrefixLoads::is_worth_it(const Load& load, size_t num_blocks) const {
  const int64_t num_tokens =
      static_cast<int64_t>(num_blocks) * int64_t{parts_.blocks.block_tokens()};
  const int64_t middle = load.blocks.front().place.position + num_tokens / 2;
  const double ns_per_row = parts_.ns_per_row(middle).value_or(0);
  const StoreFormat& format = parts_.store.format();
  return is_worth_reading(
      {.num_bytes = num_blocks * format.layout.kv_bytes() + format.states.kv_bytes(),
       .num_tokens = num_tokens,
       .read_bytes_per_second = parts_.store.stats().read_bytes_per_second,
       .prefill_tokens_per_second = ns_per_row > 0 ? 1e9 / ns_per_row : 0});
}

size_t PrefixLoads::num_left(SequenceId id) const {
  const auto found = loads_.find(id);
  if (found == loads_.end()) return 0;
  const Load& load = *found->second;
  return std::max<size_t>(load.end, load.num_committed) - load.num_committed;
}

// Network file systems may stand still.
void PrefixLoads::give_up_old_counts() {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(loads_, [&](const auto& entry) {
    Load& load = *entry.second;
    if (load.is_counted || now - load.begun_at < kLongestCount) return false;
    load.sequence->stored.is_loading = false;
    load.sequence = nullptr;
    return true;
  });
}

// Oldest request first.
void PrefixLoads::pump() {
  give_up_old_counts();
  for (const auto& [id, load] : loads_) {
    while (num_reads_ < kMaxReads && load->num_begun < load->end) {
      if (!parts_.port.begin_in(load->blocks[load->num_begun].id)) return;
      read(load, load->num_begun++);
    }
  }
}

// The hold ends with the letter, whatever the sequence does until then.
void PrefixLoads::read(const LoadPtr& load, size_t index) {
  Block& block = load->blocks[index];
  block.state = State::kReading;
  parts_.blocks.hold(block.id);
  ++num_reads_;
  ++load->num_running;
  const auto block_tokens = static_cast<size_t>(parts_.blocks.block_tokens());
  const auto first =
      load->sequence->tokens.begin() + static_cast<std::ptrdiff_t>(block.place.position);
  parts_.reader.submit({.place = block.place,
                        .tokens = {first, first + static_cast<std::ptrdiff_t>(block_tokens)},
                        .layers = parts_.port.layers(block.id),
                        .is_wanted = [load, index] { return index < load->end; },
                        .on_done =
                            [this, load, index, &mailbox = parts_.mailbox](bool is_hit, auto) {
                              mailbox.post(
                                  [this, load, index, is_hit] { read_done(load, index, is_hit); });
                            }});
}

void PrefixLoads::read_done(const LoadPtr& load, size_t index, bool is_hit) {
  --num_reads_;
  --load->num_running;
  load->blocks[index].state = State::kRead;
  if (!is_hit) cut(*load, std::min<size_t>(index, load->end));
  if (index >= load->end && load->blocks[index].state == State::kRead) drop(load->blocks[index]);
  if (load->sequence == nullptr) return;
  commit_read(*load);
  finish_if_done(load);
}

// Ends the load before block `end`, at a whole granule, and drops what was read after that.
void PrefixLoads::cut(Load& load, size_t end) {
  end = end / granule_blocks() * granule_blocks();
  load.end = end;
  for (size_t i = end; i < load.num_begun; ++i) {
    if (load.blocks[i].state == State::kRead) drop(load.blocks[i]);
  }
}

// The bytes were not right, or no sequence uses them.
void PrefixLoads::drop(Block& block) {
  block.state = State::kOver;
  parts_.port.end_in(block.id, /*is_whole=*/false);
  parts_.blocks.end_transfer(block.id);
}

// Commits what was read without a gap, granule by granule.
void PrefixLoads::commit_read(Load& load) {
  const size_t granule = granule_blocks();
  Sequence& sequence = *load.sequence;
  const size_t before = load.num_committed;
  const auto is_read = [](const Block& block) { return block.state == State::kRead; };
  while (load.num_committed + granule <= load.end) {
    const auto next = std::span(load.blocks).subspan(load.num_committed, granule);
    if (!std::ranges::all_of(next, is_read)) break;
    for (Block& block : next) {
      parts_.port.end_in(block.id, /*is_whole=*/true);
      parts_.names.set(block.id, block.place);
      parts_.on_stored(block.id);
      block.state = State::kOver;
    }
    parts_.blocks.commit(sequence.kv, sequence.tokens, parts_.blocks.hit_granule_tokens());
    for (const Block& block : next) parts_.blocks.end_transfer(block.id);
    load.num_committed += granule;
  }
  // Of a hybrid nothing counts before the states are there.
  if (parts_.states.port == nullptr) report(load, load.num_committed - before);
}

void PrefixLoads::report(Load& load, size_t num_blocks) {
  if (num_blocks == 0) return;
  const auto num_tokens = static_cast<int64_t>(num_blocks) * int64_t{parts_.blocks.block_tokens()};
  num_stored_tokens_ += num_tokens;
  load.sequence->add_stored(num_tokens);
  on_progress(*load.sequence);
}

// No read may be left: a pass will write to the blocks.
void PrefixLoads::finish_if_done(const LoadPtr& load) {
  if (load->num_running > 0 || load->num_committed < load->end) return;
  if (parts_.states.port != nullptr && load->num_committed > 0) return read_state(load);
  load->sequence->stored.is_loading = false;
  loads_.erase(load->sequence->id);
}

// ---- States ------------------------------------------------------------------------------------

// Those after the last block. Its hold ends with the letter, as that of the place.
void PrefixLoads::read_state(const LoadPtr& load) {
  Sequence& sequence = *load->sequence;
  StateSnapshots& snapshots = *parts_.states.snapshots;
  if (load->num_committed < load->num_wanted) return begin_again(load);
  if (snapshots.resume(sequence)) return finish_with_state(load);
  const SnapshotId place = snapshots.begin_read(sequence);
  if (!place.valid()) return begin_again(load);
  const BlockId block = sequence.kv.newest_full();
  const int64_t prefix = parts_.blocks.prefix_id(block);
  parts_.blocks.hold(block);
  ++num_reads_;
  ++load->num_running;
  const std::span<const int32_t> tokens = parts_.blocks.tokens(block);
  StoreRead read{
      .place = load->blocks[load->num_committed - 1].place,
      .tokens = {tokens.begin(), tokens.end()},
      .layers = parts_.states.port->layers(place),
      .on_done = [this, load, block, prefix, &mailbox = parts_.mailbox](bool is_hit, auto) {
        mailbox.post(
            [this, load, block, prefix, is_hit] { state_done(load, block, prefix, is_hit); });
      }};
  read.place.kind = StoredKind::kState;
  parts_.reader.submit(std::move(read));
}

// The place first: it goes with its block. What was read right is of use to others also if the
// sequence has gone.
void PrefixLoads::state_done(const LoadPtr& load, BlockId block, int64_t prefix, bool is_hit) {
  --num_reads_;
  --load->num_running;
  parts_.states.snapshots->end_read(prefix, is_hit);
  const bool resumes =
      load->sequence != nullptr && is_hit && parts_.states.snapshots->resume(*load->sequence);
  parts_.blocks.end_transfer(block);
  if (load->sequence == nullptr) return;
  if (resumes) return finish_with_state(load);
  begin_again(load);
}

void PrefixLoads::finish_with_state(const LoadPtr& load) {
  report(*load, load->num_committed);
  load->sequence->stored.is_loading = false;
  loads_.erase(load->sequence->id);
}

// Its blocks are right, and stay in the cache for what it finds next.
void PrefixLoads::begin_again(const LoadPtr& load) {
  StoreSlot& stored = load->sequence->stored;
  stored.is_loading = false;
  stored.begins_again = true;
  ++stored.num_bad_loads;
  loads_.erase(load->sequence->id);
}

}  // namespace sluice
