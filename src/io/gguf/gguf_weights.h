// What a GGUF file's tensors are as weights of a Hugging Face checkpoint: names, order of rows,
// F32.
//
// Used by Checkpoint. Thread rule: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf/gguf_file.h"

namespace sluice {

// Holds the divisors of rotary frequencies; the configuration reads it, not the weights.
inline constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight";

// Whether a path names a GGUF file: by its name, or by its first bytes if it has another one
// (Ollama names files by their hash). False for directories.
bool is_gguf(const std::filesystem::path& path);

// The same without later files of several, by their names (NAME-00002-of-00003.gguf).
bool is_first_gguf(const std::filesystem::path& path);

// All files of the model of which `first` is the only one or the first of several
// (NAME-00001-of-00003.gguf). Errors: kModel for a later one, and naming a file that is missing.
std::vector<std::filesystem::path> gguf_shards(const GgufFile& first);

// The architecture: "llama", "qwen2" or "qwen3". Errors: kUnsupported naming another one.
std::string gguf_architecture(const GgufFile& file);
// Width of a head: the length of keys if the file has it, else of the embedding divided by heads.
int64_t gguf_head_dim(const GgufFile& file);

// The name of the same tensor in a Hugging Face checkpoint; nothing if Sluice knows none.
std::optional<std::string> hf_tensor_name(std::string_view gguf_name);

// How the elements of a tensor are stored.
struct GgufStorage {
  const GgufType* type = nullptr;
  int64_t row_elements = 0;  // whole blocks
  // Of tensors whose rows llama.cpp has reordered in each head (the rows that rotate together side
  // by side): rows of a head; else 0.
  int64_t rotated_head_rows = 0;
};

// The storage of a tensor of this architecture. Errors: kModel if rows are no whole heads.
GgufStorage gguf_storage(const GgufFile& first, const GgufFile& owner, const GgufTensor& tensor);

// Reads elements [first, first + dst.size()) of the tensor at byte `begin` of a file, rows in the
// order of Hugging Face. Errors: those of ModelFile::read.
void read_gguf_elements(const ModelFile& file, uint64_t begin, const GgufStorage& storage,
                        int64_t first, std::span<float> dst);

}  // namespace sluice
