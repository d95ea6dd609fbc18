// Reads dual_chunk_attention_config.
#include "model/dual_chunk.h"

#include <string_view>

#include "model/config_limits.h"

namespace sluice {
namespace {

constexpr int64_t kUsualLocalSize = 1024;

}  // namespace

DualChunk read_dual_chunk(const JsonObject& config) {
  constexpr std::string_view kKey = "dual_chunk_attention_config";
  if (!config.has(kKey)) return {};
  const JsonObject given = config.get_object(kKey);
  DualChunk dual_chunk;
  dual_chunk.chunk_size = given.get_int("chunk_size", 2, kMaxPositions);
  dual_chunk.local_size =
      given.find_int("local_size", 1, dual_chunk.chunk_size - 1).value_or(kUsualLocalSize);
  if (dual_chunk.local_size >= dual_chunk.chunk_size) given.fail("chunk_size", "above local_size");
  dual_chunk.original_positions =
      given.find_int("original_max_position_embeddings", dual_chunk.chunk_tokens(), kMaxPositions)
          .value_or(dual_chunk.chunk_size);
  return dual_chunk;
}

}  // namespace sluice
