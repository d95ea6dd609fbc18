// EngineOptions: everything that shapes an engine, in vLLM's names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice {

struct EngineOptions {
  std::string model;                 // a Hugging Face model directory
  std::string load_format = "auto";  // "auto" reads safetensors, "dummy" makes random weights
  bool skip_tokenizer_init = false;  // token ids only: no tokenizer is read, a byte is a token
  std::string device = "auto";       // "auto", "cpu", "cuda", "cuda:N"
  int32_t num_threads = 0;           // CPU threads; 0 takes all the machine has

  // Longest prompt + output of a request; 0 takes the model's own limit, or what fits if less does.
  int64_t max_model_len = 0;
  int32_t max_num_seqs = 256;          // sequences in one decode batch
  int32_t max_num_batched_tokens = 0;  // tokens of one prefill pass; 0: 8192 on CUDA, 1024 on CPU
  int32_t prefill_chunk_tokens = 0;  // longest span of one sequence in a pass; 0: the pass's limit

  int32_t block_size = 0;               // tokens of a KV block, 16 to 8192; 0: 256, offloaded 1024
  double gpu_memory_utilization = 0.9;  // share of the device's memory for weights and KV
  size_t kv_cache_bytes = 0;            // size of the KV cache; 0: what the share leaves
  bool enable_prefix_caching = true;
  // CUDA: launches every kernel of a decode step one by one instead of replaying a graph of them.
  // The same results, slower; a tool for finding errors.
  bool enforce_eager = false;

  // Where KV lives. "off": on the device. "chunked" and "layerwise": in pinned host memory, from
  // where it flows through a ring of slots; they differ in prefill. "chunked" takes a prompt
  // through all layers a chunk at a time and streams earlier chunks in; "layerwise" takes the whole
  // prompt through one layer at a time and reads nothing back, for activations of the whole prompt
  // on the device. "auto" takes the first of off, layerwise, chunked that fits, and says so.
  std::string kv_offload = "off";
  size_t kv_host_bytes = 0;  // size of the host tier; 0: what max_num_seqs sequences need, capped
  // Device memory for blocks that also stay there and need not flow; -1: what the share leaves on a
  // GPU, none on a CPU. Results do not depend on it.
  int64_t kv_device_bytes = -1;
  int32_t num_kv_slots = 4;    // slots of the ring, 2 to 64
  int32_t kv_slot_blocks = 0;  // KV blocks in a slot; 0: as make 4096 tokens, 32768 on a GPU
  // Blocks come to the device by copies where those that are neighbours on the host make runs of
  // this many bytes and more, and by a kernel where runs are shorter. 0: always by copies; -1: what
  // `sluice doctor` has measured on a GPU, copies on a CPU. Results do not depend on it.
  int64_t kv_copy_bytes = -1;

  // Not empty: what every stream runs is recorded, for LLM::write_timeline to write there.
  std::string timeline_path;

  // Which KV attention reads: "full", "streaming", or two policies, for prefill and for decode, as
  // in "full+quest" and "streaming+quest".
  std::string sparse_policy = "full";
  // Options of sparse policies; docs/policies.md says which policy uses which. Empty: the policy's
  // default. One that the policy does not use is an error.
  std::optional<int32_t> sparse_topk_tokens;       // tokens that are chosen by score
  std::optional<int32_t> sparse_page_tokens;       // chosen together: 16 to 128, in steps of 16
  std::optional<int32_t> sparse_sink_tokens;       // always read from the start; beside topk
  std::optional<int32_t> sparse_recent_tokens;     // always read before the query; beside topk
  std::optional<int32_t> sparse_threshold_tokens;  // positions before this read everything
  bool sparse_shared_list = false;                 // all KV heads of a layer choose together

  int64_t seed = 0;  // of dummy weights and of requests without a seed
};

}  // namespace sluice
