// Compares bytes in pieces that stay in the cache.
#include "model/output_head.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>

namespace sluice {
namespace {

constexpr size_t kHeadPieceBytes = size_t{1} << 20;

bool have_equal_bytes(const CheckpointTensor& a, const CheckpointTensor& b) {
  if (a.dtype != b.dtype) return false;
  std::vector<std::byte> piece_of_a(std::min(kHeadPieceBytes, a.num_bytes));
  std::vector<std::byte> piece_of_b(piece_of_a.size());
  for (size_t at = 0; at < a.num_bytes; at += kHeadPieceBytes) {
    const size_t size = std::min(kHeadPieceBytes, a.num_bytes - at);
    a.read(at, std::span(piece_of_a).first(size));
    b.read(at, std::span(piece_of_b).first(size));
    if (std::memcmp(piece_of_a.data(), piece_of_b.data(), size) != 0) return false;
  }
  return true;
}

}  // namespace

void untie_different_head(const Checkpoint& checkpoint, ModelConfig& config) {
  if (!config.tie_word_embeddings || !checkpoint.has(kHeadName)) return;
  const int64_t shape[] = {config.vocab_size, config.hidden_size};
  const CheckpointTensor head = checkpoint.tensor(kHeadName, shape);
  if (have_equal_bytes(head, checkpoint.tensor(kEmbeddingName, shape))) return;
  config.tie_word_embeddings = false;
  config.warnings.push_back(fmt::format(
      "{}: {} differs from {}, though config.json has tie_word_embeddings true; the head of the "
      "weights is used; set tie_word_embeddings to false if it is right, or remove the tensor",
      head.file->path().string(), kHeadName, kEmbeddingName));
}

}  // namespace sluice
