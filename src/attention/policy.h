// Policy: which pages of KV a pass attends to. A pure selection: summaries and queries in, page
// lists out.
//
// A policy moves nothing, waits for nothing and computes no attention; the executor does all three
// for every policy. To add one: derive from Policy in policies/, name it in make_policy, and it is
// run through tests/attention/policy_conformance_test.cc like all others.
// Thread rule: the engine's thread; device work is enqueued on the stream that is passed in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "device/device.h"
#include "kv/kv_layout.h"
#include "ops/attention.h"

namespace sluice {

enum class Phase { kPrefill, kDecode };

std::string_view phase_name(Phase phase);

// What a policy may look at when it selects for one layer.
struct SelectInput {
  Phase phase = Phase::kPrefill;
  int32_t layer = 0;
  TensorView q;          // bf16 [num_rows, num_q_heads, head_dim], after rope
  AttentionBatch batch;  // which rows belong to which sequence
  TensorView kv_end;     // i32 [num_seqs]: tokens of each sequence that exist
  // The sequences of the pass in row order, for what a policy keeps per sequence.
  const std::vector<SequenceId>* sequences = nullptr;
};

// What the policy chose. `pages` absent means everything.
struct Selection {
  PageList pages;
};

class Policy {
 public:
  virtual ~Policy() = default;

  virtual std::string_view name() const = 0;
  virtual bool supports_prefill() const = 0;
  virtual bool supports_decode() const = 0;
  bool supports(Phase phase) const {
    return phase == Phase::kPrefill ? supports_prefill() : supports_decode();
  }

  // Whether decode steps may be recorded and replayed: what `select_blocks` enqueues depends on the
  // shapes of its input alone, and rows beyond `sequences` (padding) are nothing to it.
  virtual bool capturable() const { return false; }

  // Takes the memory for summaries and lists; called once, after the KV cache was allocated.
  virtual void initialize(Device& device, const KvLayout& layout);

  // Forgets everything about a sequence that ended or was preempted.
  virtual void reset(SequenceId sequence);

  // Selects for one layer of one pass.
  // Order: lists are ready in stream order; the host knows nothing of their contents.
  // Errors: kUnsupported when the policy does not support the phase. The executor has refused
  // before; a policy that is called directly must not compute something else in silence.
  Selection select_blocks(Stream& stream, const SelectInput& input);

 private:
  virtual Selection do_select_blocks(Stream& stream, const SelectInput& input) = 0;
};

// Makes a policy by name ("full").
// Errors: kInvalidArgument naming the value of `sparse_policy` and the names there are.
std::unique_ptr<Policy> make_policy(std::string_view name);

// The error both the executor and the policy give for a phase that the policy does not do.
[[noreturn]] void fail_unsupported_phase(const Policy& policy, Phase phase);

}  // namespace sluice
