// CudaLedger and CudaPast: which ops a stream was given, and which errors a wait must throw.
//
// CUDA itself knows neither names of ops nor errors of one stream. A launch that fails is known on
// the host at once; a kernel that reports bad input is found out at a host wait. For the second, a
// wait has to know which ops of which streams it depends on, so streams and events carry a small
// vector clock. Used by CudaStream and CudaEvent. Thread rule: the host thread that enqueues.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "device/cuda/cuda_report.h"

namespace sluice {

// An error that several streams and events share once it has spread.
using SharedError = std::shared_ptr<const Error>;

// What one stream was given. Owned by the device, which outlives streams and events, so that an
// event may point here after its stream died.
class CudaLedger {
 public:
  // `word` is pinned memory, zero, and outlives the ledger.
  CudaLedger(std::string stream_name, uint64_t* word)
      : stream_name_(std::move(stream_name)), word_(word) {}

  const std::string& stream_name() const { return stream_name_; }

  // Notes an op and returns its serial, which is never 0.
  uint32_t add_op(const char* op_name);
  uint32_t newest_serial() const { return serial_; }

  // The newest ops, newest first: "matmul, rms_norm"; empty when there were none.
  std::string newest_ops() const;

  // A report for the newest op; `text` is a fmt format with one {} for the row.
  // REQUIRES: op_name and text live as long as the device; at most 255 different ones.
  CudaReport make_report(const char* op_name, const char* text, bool in_graph);

  // The error that a kernel of an op up to `serial` reported, or null.
  SharedError reported(uint32_t serial);

 private:
  struct Message {
    const char* op_name;
    const char* text;
  };
  static constexpr uint32_t kNumNewest = 8;

  SharedError read_word(uint64_t word) const;

  const std::string stream_name_;
  uint64_t* const word_;
  uint32_t serial_ = 0;
  std::array<const char*, kNumNewest> newest_ = {};
  std::vector<Message> messages_;
  SharedError reported_;
  uint32_t reported_serial_ = 0;
};

// What some point in a stream's work depends on, and the error known of it.
class CudaPast {
 public:
  // Everything `ledger` was given up to `serial` is part of this past.
  void reach(CudaLedger* ledger, uint32_t serial);

  // Adds what an event captured. Keeps its own error if it has one.
  void join(const CudaPast& other);

  // The first error known on the host, from an op that failed when it was enqueued.
  const SharedError& error() const { return error_; }
  void set_error(SharedError error) { error_ = std::move(error); }

  // `error`, or what a kernel of this past reported, if anything.
  // REQUIRES: the host has waited for the work, or an earlier report may be missed.
  SharedError find_error() const;

 private:
  struct Reach {
    CudaLedger* ledger;
    uint32_t serial;
  };
  std::vector<Reach> reaches_;  // one per stream; a handful
  SharedError error_;
};

}  // namespace sluice
