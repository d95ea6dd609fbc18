// EngineOptions: everything that shapes an engine, in vLLM's names.
#pragma once

#include <cstddef>
#include <cstdint>
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

  int32_t block_size = 0;               // tokens of a KV block, 16 to 8192; 0: 256
  double gpu_memory_utilization = 0.9;  // share of the device's memory for weights and KV
  size_t kv_cache_bytes = 0;            // size of the KV cache; 0: what the share leaves
  bool enable_prefix_caching = true;

  std::string sparse_policy = "full";  // "full"; others as they arrive
  int64_t seed = 0;                    // of dummy weights and of requests without a seed
};

}  // namespace sluice
