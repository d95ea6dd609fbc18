// The fetch of missing experts on the CPU: a copy of each one's weights.
//
// Bound: memory. Thread rule: enqueue only; pieces of the weights run on the stream's team.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "device/cpu/cpu_stream.h"
#include "ops/cpu/cpu_ops.h"

namespace sluice::cpu {
namespace {

constexpr size_t kPieceBytes = size_t{256} << 10;  // of one thread at a time

// FetchExpertsArgs as plain pointers and sizes.
struct ExpertFetch {
  const std::byte* src[2];
  std::byte* dst[2];
  size_t stride_bytes[2];
  const int32_t* keys;
  const int32_t* places;
  const int32_t* count;
  int64_t* num_bytes;
  int32_t num_experts;
  int32_t num_places;
};

// Returns the bytes read from the host, for the stream's meter.
size_t fetch_missing_experts(const ExpertFetch& call, ThreadTeam& team) {
  size_t num_bytes = 0;
  for (int32_t i = 0; i < *call.count; ++i) {
    const int32_t key = call.keys[i];
    const int32_t place = call.places[i];
    SLUICE_CHECK(key >= 0 && key < call.num_experts && place >= 0 && place < call.num_places,
                 "fetch_experts: expert {} at place {}", key, place);
    for (int matrix = 0; matrix < 2; ++matrix) {
      const size_t size = call.stride_bytes[matrix];
      const std::byte* src = call.src[matrix] + static_cast<size_t>(key) * size;
      std::byte* dst = call.dst[matrix] + static_cast<size_t>(place) * size;
      team.parallel_for(static_cast<int64_t>((size + kPieceBytes - 1) / kPieceBytes),
                        [&](int64_t piece) {
                          const size_t at = static_cast<size_t>(piece) * kPieceBytes;
                          std::memcpy(dst + at, src + at, std::min(kPieceBytes, size - at));
                        });
      num_bytes += size;
    }
  }
  *call.num_bytes += static_cast<int64_t>(num_bytes);
  return num_bytes;
}

}  // namespace

void CpuOps::fetch_experts(Stream& stream, const FetchExpertsArgs& args) const {
  const ExpertFetch call{.src = {args.src[0].first.data, args.src[1].first.data},
                         .dst = {args.dst[0].first.data, args.dst[1].first.data},
                         .stride_bytes = {args.src[0].stride_bytes, args.src[1].stride_bytes},
                         .keys = args.missing.keys.data<int32_t>(),
                         .places = args.missing.places.data<int32_t>(),
                         .count = args.missing.count.data<int32_t>(),
                         .num_bytes = args.num_bytes.data<int64_t>(),
                         .num_experts = args.src[0].num_experts,
                         .num_places = args.dst[0].num_experts};
  as_cpu(stream).submit_transfer(
      "fetch_experts", TransferDirection::kToDevice,
      [call](ThreadTeam& team) { return fetch_missing_experts(call, team); });
}

}  // namespace sluice::cpu
