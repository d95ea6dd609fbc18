// Lays out a checkpoint's matrix for the kernels of matmul_kernel.h while converting it to bf16.
//
// Used once per weight while a model loads. Bound by reading the page cache, so a panel is written
// in the order of its bytes and each source row is read once, forwards. Thread rule: enqueue only.
#include <algorithm>
#include <cstring>

#include "device/cpu/cpu_stream.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/matmul_kernel.h"

namespace sluice::cpu {
namespace {

constexpr int64_t kChunkK = 64;  // source columns in flight: two cache lines of each bf16 row

// What a task needs: plain values, since the args' views do not outlive their caller.
struct PackProblem {
  const std::byte* src = nullptr;  // [num_rows][k], of the checkpoint's type, at any alignment
  uint32_t* dst = nullptr;         // first panel: [panel][padded_k / 2][16] pairs
  int64_t num_rows = 0;
  int64_t k = 0;
  int64_t padded_k = 0;
};

// safetensors gives no promise of alignment, hence memcpy.
template <typename Element>
uint32_t load_bf16(const std::byte* src) {
  Element element;
  std::memcpy(&element, src, sizeof(element));
  return BFloat16(static_cast<float>(element)).bits;
}

// Neighbouring columns as one pair, the even one in the lower half.
template <typename Element>
uint32_t load_pair(const std::byte* src) {
  if constexpr (std::is_same_v<Element, BFloat16>) {
    uint32_t pair;  // as it lies in the checkpoint; x86 is little-endian
    std::memcpy(&pair, src, sizeof(pair));
    return pair;
  } else {
    return load_bf16<Element>(src) | load_bf16<Element>(src + sizeof(Element)) << 16;
  }
}

// Columns [begin, end) of one source row into pairs, every 16th of dst; zero from `k` on.
template <typename Element>
void pack_row_chunk(const std::byte* row, int64_t begin, int64_t end, int64_t k, uint32_t* dst) {
  const int64_t whole_pairs_end = std::min(end, k / 2 * 2);
  const std::byte* src = row + begin * static_cast<int64_t>(sizeof(Element));
  int64_t column = begin;
  for (; column < whole_pairs_end; column += 2, dst += kPanelRows, src += 2 * sizeof(Element)) {
    *dst = load_pair<Element>(src);
  }
  for (; column < end; column += 2, dst += kPanelRows) {
    *dst = column < k ? load_bf16<Element>(src) : 0;  // the last column of an odd k, then padding
  }
}

template <typename Element>
void pack_panel(const PackProblem& problem, int64_t panel) {
  uint32_t* dst = problem.dst + panel * problem.padded_k / 2 * kPanelRows;
  const int64_t first = panel * kPanelRows;
  const int64_t count = std::min(kPanelRows, problem.num_rows - first);
  const int64_t row_bytes = problem.k * static_cast<int64_t>(sizeof(Element));
  if (count < kPanelRows) {
    std::memset(dst, 0, static_cast<size_t>(problem.padded_k * kPanelRows) * sizeof(uint16_t));
  }
  for (int64_t begin = 0; begin < problem.padded_k; begin += kChunkK) {
    const int64_t end = std::min(begin + kChunkK, problem.padded_k);
    for (int64_t row = 0; row < count; ++row) {
      pack_row_chunk<Element>(problem.src + (first + row) * row_bytes, begin, end, problem.k,
                              dst + begin / 2 * kPanelRows + row);
    }
  }
}

template <typename Element>
void submit_pack(CpuStream& stream, const PackProblem& problem) {
  stream.submit("pack_weight", [problem](ThreadTeam& team) {
    const int64_t num_panels = (problem.num_rows + kPanelRows - 1) / kPanelRows;
    team.parallel_for(num_panels, [&](int64_t panel) { pack_panel<Element>(problem, panel); });
  });
}

}  // namespace

void pack_weight(CpuStream& stream, const PackWeightArgs& args) {
  const int64_t k = args.dst.num_cols;
  const int64_t padded_k = (k + kPaddedKMultiple - 1) / kPaddedKMultiple * kPaddedKMultiple;
  const PackProblem problem{
      .src = args.src.bytes(),
      .dst = reinterpret_cast<uint32_t*>(args.dst.data) + args.row_begin * padded_k / 2,
      .num_rows = args.src.dim(0),
      .k = k,
      .padded_k = padded_k};
  switch (args.src.dtype()) {
    case DType::kBF16:
      return submit_pack<BFloat16>(stream, problem);
    case DType::kF16:
      return submit_pack<Float16>(stream, problem);
    case DType::kF32:
      return submit_pack<float>(stream, problem);
    default:
      SLUICE_CHECK(false, "pack_weight: src is {}", args.src.to_string());
  }
}

}  // namespace sluice::cpu
