// Copies each sequence's entries behind those of the rows before it.
#include "engine/sampling/adjustment_arrays.h"

#include <algorithm>

namespace sluice {
namespace {

// Entries of a row on average, if all rows are adjusted: the distinct tokens of a text of some 10K
// tokens.
constexpr int64_t kEntriesPerRow = 2048;

int64_t num_entries(int64_t max_rows, int64_t vocab_size) {
  return std::max(vocab_size, max_rows * kEntriesPerRow);
}

}  // namespace

AdjustmentArrays::Arrays AdjustmentArrays::cut(Arena& arena, int64_t max_rows, int64_t vocab_size) {
  const int64_t entries = num_entries(max_rows, vocab_size);
  Arrays a;
  a.begin = arena.tensor(DType::kI32, {max_rows + 1});
  a.ids = arena.tensor(DType::kI32, {entries});
  a.bias = arena.tensor(DType::kF32, {entries});
  a.repetition = arena.tensor(DType::kF32, {entries});
  a.penalty = arena.tensor(DType::kF32, {entries});
  return a;
}

size_t AdjustmentArrays::pinned_bytes(int64_t max_rows, int64_t vocab_size) {
  Arena plan;
  cut(plan, max_rows, vocab_size);
  return plan.used_bytes();
}

size_t AdjustmentArrays::device_bytes(int64_t max_rows, int64_t vocab_size) {
  return static_cast<size_t>(num_entries(max_rows, vocab_size)) * sizeof(float);
}

AdjustmentArrays::AdjustmentArrays(int64_t max_rows, int64_t vocab_size, Device& device)
    : host_memory_(device.allocate(pinned_bytes(max_rows, vocab_size), MemoryKind::kPinned)),
      device_memory_(device.allocate(device_bytes(max_rows, vocab_size), MemoryKind::kDevice)) {
  Arena arena(host_memory_.data(), host_memory_.size_bytes());
  arrays_ = cut(arena, max_rows, vocab_size);
  rows_.reserve(static_cast<size_t>(max_rows));
}

void AdjustmentArrays::begin_pass() {
  rows_.clear();
  with_drafts_.reset();
  drafted_ = {};
  any_ = false;
}

void AdjustmentArrays::add(const Sequence* sequence, int64_t num_drafts) {
  const bool adjusted = sequence != nullptr && sequence->logit_entries.size() > 0;
  rows_.push_back({.sequence = adjusted ? sequence : nullptr, .num_drafts = num_drafts});
  any_ = any_ || adjusted;
}

// Penalties count the drafts before a row. Rows of a sequence follow each other, so its entries are
// copied once for all of them.
const LogitEntries& AdjustmentArrays::entries_of(const Row& row) {
  if (row.num_drafts == 0 || !row.sequence->has_penalties()) return row.sequence->logit_entries;
  if (drafted_.sequence != row.sequence || drafted_.num_drafts > row.num_drafts) {
    with_drafts_ = row.sequence->logit_entries;
    drafted_ = {.sequence = row.sequence, .num_drafts = 0};
  }
  for (; drafted_.num_drafts < row.num_drafts; ++drafted_.num_drafts) {
    with_drafts_->append(row.sequence->draft.tokens[static_cast<size_t>(drafted_.num_drafts)]);
  }
  return *with_drafts_;
}

int64_t AdjustmentArrays::fill(int64_t first_row) {
  SLUICE_CHECK(first_row < std::ssize(rows_), "row {} of {}", first_row, rows_.size());
  int64_t used = 0;
  num_filled_ = 0;
  for (int64_t row = first_row; row < std::ssize(rows_); ++row) {
    const Sequence* sequence = rows_[static_cast<size_t>(row)].sequence;
    const LogitEntries* entries =
        sequence == nullptr ? nullptr : &entries_of(rows_[static_cast<size_t>(row)]);
    const int64_t size = entries == nullptr ? 0 : std::ssize(entries->ids());
    if (used + size > arrays_.ids.dim(0)) break;
    arrays_.begin.data<int32_t>()[num_filled_] = static_cast<int32_t>(used);
    if (entries != nullptr) write_entries(*entries, static_cast<int32_t>(used));
    used += size;
    ++num_filled_;
  }
  arrays_.begin.data<int32_t>()[num_filled_] = static_cast<int32_t>(used);
  return num_filled_;
}

void AdjustmentArrays::write_entries(const LogitEntries& entries, int32_t begin) {
  std::copy(entries.ids().begin(), entries.ids().end(), arrays_.ids.data<int32_t>() + begin);
  std::copy(entries.biases().begin(), entries.biases().end(), arrays_.bias.data<float>() + begin);
  std::copy(entries.repetitions().begin(), entries.repetitions().end(),
            arrays_.repetition.data<float>() + begin);
  std::copy(entries.penalties().begin(), entries.penalties().end(),
            arrays_.penalty.data<float>() + begin);
}

LogitAdjustments AdjustmentArrays::view() const {
  return {.begin = arrays_.begin.rows(0, num_filled_ + 1),
          .ids = arrays_.ids,
          .bias = arrays_.bias,
          .repetition = arrays_.repetition,
          .penalty = arrays_.penalty,
          .scratch = TensorView(device_memory_.data(), DType::kF32, {arrays_.ids.dim(0)})};
}

}  // namespace sluice
