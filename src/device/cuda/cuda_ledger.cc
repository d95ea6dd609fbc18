// Counts serials, keeps the names of the newest ops, and reads the report word.
#include "device/cuda/cuda_ledger.h"

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

// Whether serial `a` is not after `b`. Serials wrap at 2^32; two that are compared are less than
// 2^31 ops apart.
bool at_or_before(uint32_t a, uint32_t b) { return static_cast<int32_t>(b - a) >= 0; }

}  // namespace

uint32_t CudaLedger::add_op(const char* op_name) {
  if (++serial_ == 0) ++serial_;  // 0 means "in a graph" in a report
  newest_[serial_ % kNumNewest] = op_name;
  return serial_;
}

std::string CudaLedger::newest_ops() const {
  std::string names;
  for (uint32_t i = 0; i < kNumNewest; ++i) {
    const char* name = newest_[(serial_ - i) % kNumNewest];
    if (name == nullptr) break;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return names;
}

// Messages are few and compared by content: the same op reports again in every step.
CudaReport CudaLedger::make_report(const char* op_name, const char* text, bool in_graph) {
  const auto known = std::find_if(messages_.begin(), messages_.end(), [&](const Message& message) {
    return std::strcmp(message.op_name, op_name) == 0 && std::strcmp(message.text, text) == 0;
  });
  const auto index = static_cast<size_t>(known - messages_.begin());
  if (known == messages_.end()) {
    SLUICE_CHECK(messages_.size() < 255, "more than 255 messages of kernels");
    messages_.push_back({op_name, text});
  }
  return {
      .word = word_, .message = static_cast<uint32_t>(index) + 1, .serial = in_graph ? 0 : serial_};
}

SharedError CudaLedger::reported(uint32_t serial) {
  if (reported_ == nullptr) {
    // A kernel may write this word at any time; after a wait for that kernel its value is visible.
    const uint64_t word = __atomic_load_n(word_, __ATOMIC_ACQUIRE);
    if (word == 0) return nullptr;
    reported_ = read_word(word);
    reported_serial_ = static_cast<uint32_t>(word);
  }
  if (reported_serial_ != 0 && !at_or_before(reported_serial_, serial)) return nullptr;
  return reported_;
}

// Unpacks a report (layout: cuda_report.h) and makes its error.
SharedError CudaLedger::read_word(uint64_t word) const {
  const size_t index = (word >> 56) - 1;
  const uint64_t row = (word >> 32) & kMaxReportedRow;
  SLUICE_CHECK(index < messages_.size(), "a kernel reported message {} of {}", index,
               messages_.size());
  const Message& message = messages_[index];
  return std::make_shared<const Error>(
      ErrorCode::kDevice, fmt::format(fmt::runtime(message.text), row),
      fmt::format("stream '{}', op '{}'", stream_name_, message.op_name));
}

void CudaPast::reach(CudaLedger* ledger, uint32_t serial) {
  for (Reach& known : reaches_) {
    if (known.ledger != ledger) continue;
    if (at_or_before(known.serial, serial)) known.serial = serial;
    return;
  }
  reaches_.push_back({ledger, serial});
}

void CudaPast::join(const CudaPast& other) {
  for (const Reach& theirs : other.reaches_) reach(theirs.ledger, theirs.serial);
  if (error_ == nullptr) error_ = other.error_;
}

SharedError CudaPast::find_error() const {
  // Reports first: they come from ops that ran, and so before any that failed to be enqueued.
  for (const Reach& known : reaches_) {
    if (SharedError error = known.ledger->reported(known.serial)) return error;
  }
  return error_;
}

}  // namespace sluice
