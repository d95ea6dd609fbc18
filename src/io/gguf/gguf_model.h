// The files of a GGUF model, and what their metadata say of its kind.
//
// Used by Checkpoint, the model configuration and programs that list models. Thread rule: free
// functions without state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf/gguf_file.h"

namespace sluice {

// Whether a path names a GGUF file: by its name, or by its first bytes if it has another one
// (Ollama names files by their hash). False for directories.
bool is_gguf(const std::filesystem::path& path);

// The same without later files of several, by their names (NAME-00002-of-00003.gguf).
bool is_first_gguf(const std::filesystem::path& path);

// All files of the model of which `first` is the only one or the first of several
// (NAME-00001-of-00003.gguf). Errors: kModel for a later one, and naming a file that is missing.
std::vector<std::filesystem::path> gguf_shards(const GgufFile& first);

// The architecture, one of those that Sluice reads. Errors: kUnsupported naming another one.
std::string gguf_architecture(const GgufFile& file);

// "qwen3next", "qwen35" or "qwen35moe".
bool is_gguf_hybrid(std::string_view architecture);

// Whether MLPs are mixtures of experts. Files of "llama" say it by their number.
bool has_gguf_experts(const GgufFile& file);

// Layers of the model; those that draft tokens come after them in the file and do not count.
// Errors: kModel naming the key.
int64_t gguf_num_layers(const GgufFile& file);

// Width of a head: the length of keys if the file has it, else of the embedding divided by heads.
int64_t gguf_head_dim(const GgufFile& file);

// The heads of a hybrid's linear layers.
struct GgufDeltaHeads {
  int64_t num_k_heads = 0;
  int64_t num_v_heads = 0;  // a multiple of num_k_heads
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  // The value heads of a key head lie num_k_heads apart: first those that are first of their key
  // head. Else they are neighbours, as in Hugging Face's files.
  bool tiled = false;
};
// REQUIRES: a hybrid. Errors: kModel naming a key that is missing or does not fit.
GgufDeltaHeads gguf_delta_heads(const GgufFile& file);

}  // namespace sluice
