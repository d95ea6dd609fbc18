// Moves blocks through an OffloadEngine, as prefill and decode do, without their compute.
#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "cli/units.h"
#include "kv/offload_engine.h"
#include "lab/transfer.h"

namespace sluice::lab {

using namespace cli;  // what programs print and read

namespace {

// A small engine with realistic shapes: more layers would only repeat the same transfers.
constexpr int32_t kLayers = 4;
constexpr int32_t kSlots = 4;
constexpr int32_t kTails = 4;
constexpr int32_t kSlotTokens = 4096;  // the default of a CPU (plan_traits.cc)
constexpr int32_t kBlockTokens[] = {256, 1024};

// Heads of a model of about 8B parameters.
constexpr KvLayout layout_of(int32_t block_tokens) {
  return {.num_layers = kLayers,
          .block = {.num_kv_heads = 8, .head_dim = 128, .block_tokens = block_tokens}};
}

// An engine whose host tier has about `num_bytes`. The number of blocks is even, for two halves.
OffloadSizes sizes_for(const KvLayout& layout, size_t num_bytes, size_t copy_run_bytes) {
  const auto fitting = static_cast<int32_t>(num_bytes / layout.block_bytes_all_layers());
  const int32_t slot_blocks = kSlotTokens / layout.block.block_tokens;
  return {.num_host_blocks = std::max(2, fitting / 2 * 2),
          .num_slots = kSlots,
          .slot_blocks = slot_blocks,
          .stage_blocks = slot_blocks,
          .num_tails = kTails,
          .copy_run_bytes = copy_run_bytes};
}

using Ids = std::span<const BlockId>;

// An engine, and the transfers to measure on it; synchronize() ends them.
class EngineProblem {
 public:
  EngineProblem(const TransferBench& bench, int32_t block_tokens, size_t copy_run_bytes)
      : layout_(layout_of(block_tokens)),
        sizes_(sizes_for(layout_, bench.memory.num_bytes(), copy_run_bytes)),
        compute_(bench.device.make_stream({.name = "compute"})),
        engine_(bench.device, *compute_, layout_, sizes_) {
    for (int32_t id = 0; id < sizes_.num_host_blocks; ++id) neighbours_.emplace_back(id);
    // Even ids, then odd ones: no block follows its neighbour.
    for (int32_t first : {0, 1}) {
      for (int32_t id = first; id < sizes_.num_host_blocks; id += 2) apart_.emplace_back(id);
    }
    compute_->synchronize();  // nothing is pending between measurements
  }

  size_t block_bytes() const { return layout_.block_bytes(); }
  Ids neighbours() const { return neighbours_; }
  Ids apart() const { return apart_; }
  size_t bytes_of(Ids ids) const { return ids.size() * layout_.block_bytes_all_layers(); }

  // Loads each layer's blocks through the ring, slot by slot, and releases each slot unread: decode
  // with compute that takes no time.
  void load(Ids ids) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for_each_slot_of(ids, [&](Ids slot) {
        // use: compute waits for the load; release: the slot is free when compute gets there.
        SlotLease lease = engine_.loader().load(LayerId(layer), slot);
        lease.use(*compute_);
        lease.release();
      });
    }
  }

  // Writes back passes of a slot's tokens, layer by layer: prefill with compute that takes no time.
  void write_back(Ids ids) {
    for_each_slot_of(ids, [&](Ids pass) { write_back_pass(pass); });
  }

  // Writes one pass back while the blocks of an earlier one are loaded: chunked prefill.
  void load_and_write_back(Ids old_ids, Ids new_ids) {
    for_each_slot_of(new_ids, [&](Ids pass) {
      load(old_ids.subspan(static_cast<size_t>(pass.data() - new_ids.data()), pass.size()));
      write_back_pass(pass);
    });
  }

  // Writes back one block of all layers at a time, each in one strided copy: decode that fills
  // tails.
  void flush_tails(Ids ids) {
    constexpr SequenceId kSequence(0);
    for (const BlockId id : ids) {
      engine_.tails().take(kSequence);
      engine_.flush_tail(kSequence, id);
    }
  }

  // Waits for all transfers.
  void synchronize() {
    engine_.synchronize();
    compute_->synchronize();
  }

 private:
  // Calls fn(part) for consecutive parts of at most a slot's blocks.
  template <typename Fn>
  void for_each_slot_of(Ids ids, Fn fn) const {
    const auto slot_blocks = static_cast<size_t>(sizes_.slot_blocks);
    for (size_t first = 0; first < ids.size(); first += slot_blocks) {
      fn(ids.subspan(first, std::min(slot_blocks, ids.size() - first)));
    }
  }

  // One prefill pass whose blocks become `pass`, staged and written back layer by layer.
  void write_back_pass(Ids pass) {
    std::vector<StagedBlock> staged;
    for (const BlockId id : pass) {
      staged.push_back({.stage_id = StageId(static_cast<int32_t>(staged.size())), .host_id = id});
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      engine_.begin_stage(LayerId(layer));
      engine_.write_back_stage(LayerId(layer), staged);
    }
  }

  KvLayout layout_;
  OffloadSizes sizes_;
  std::unique_ptr<Stream> compute_;
  OffloadEngine engine_;
  std::vector<BlockId> neighbours_, apart_;  // all host blocks, in two orders
};

// Measures transfers of an engine that copies runs of at least `copy_run_bytes` and uses the kernel
// for shorter ones.
class EngineMeasurement {
 public:
  EngineMeasurement(const TransferBench& bench, int32_t block_tokens, size_t copy_run_bytes,
                    std::vector<Transfer>* results)
      : bench_(bench),
        block_tokens_(block_tokens),
        problem_(bench, block_tokens, copy_run_bytes),
        results_(results) {}

  EngineProblem& problem() { return problem_; }

  // Adds the rate of `enqueue`, which moves all layers of the blocks `ids`.
  template <typename Enqueue>
  void measure(const std::string& way, Ids ids, Spread LinkRates::*bound, Enqueue enqueue) {
    results_->push_back(
        {.group = fmt::format("{}, {} layers, {} slots", kEngineGroup, kLayers, kSlots),
         .row = fmt::format("blocks of {}, {}", block_tokens_,
                            format_bytes(static_cast<double>(problem_.block_bytes()))),
         .way = way,
         .unit_bytes = problem_.block_bytes(),
         .bytes_per_second = measure_transfer(problem_.bytes_of(ids), bench_.repeats,
                                              [&] {
                                                enqueue();
                                                problem_.synchronize();
                                              }),
         .bound = bound});
  }

 private:
  const TransferBench& bench_;
  int32_t block_tokens_;
  EngineProblem problem_;
  std::vector<Transfer>* results_;
};

// Runs of one block by copies alone and by the kernel alone, whatever an engine would choose.
void measure_scattered(const TransferBench& bench, int32_t block_tokens,
                       std::vector<Transfer>* results) {
  for (const bool by_kernel : {false, true}) {
    // No run reaches half of the address space, and every run reaches 0.
    EngineMeasurement engine(bench, block_tokens, by_kernel ? SIZE_MAX / 2 : 0, results);
    EngineProblem& problem = engine.problem();
    // A load needs a block that was written back before.
    problem.write_back(problem.neighbours());
    engine.measure(by_kernel ? "scattered, kernel" : "scattered, copies", problem.apart(),
                   &LinkRates::to_device, [&] { problem.load(problem.apart()); });
  }
}

// Write-back comes first, since a load waits for the write-back of its block.
void measure_block_size(const TransferBench& bench, int32_t block_tokens,
                        std::vector<Transfer>* results) {
  {
    EngineMeasurement engine(bench, block_tokens, bench.copy_run_bytes, results);
    EngineProblem& problem = engine.problem();
    const Ids all = problem.neighbours();
    const Ids old_half = all.first(all.size() / 2), new_half = all.last(all.size() / 2);
    engine.measure("write-back", all, &LinkRates::to_host, [&] { problem.write_back(all); });
    engine.measure("tails", all, &LinkRates::to_host, [&] { problem.flush_tails(all); });
    engine.measure("load", all, &LinkRates::to_device, [&] { problem.load(all); });
    engine.measure("load + write-back", all, &LinkRates::both,
                   [&] { problem.load_and_write_back(old_half, new_half); });
    engine.measure("scattered", all, &LinkRates::to_device, [&] { problem.load(problem.apart()); });
  }
  measure_scattered(bench, block_tokens, results);
}

}  // namespace

void measure_engine(const TransferBench& bench, std::vector<Transfer>* results) {
  for (const int32_t block_tokens : kBlockTokens) {
    measure_block_size(bench, block_tokens, results);
  }
}

}  // namespace sluice::lab
