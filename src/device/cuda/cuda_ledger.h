// CudaLedger and CudaPast: the ops that each stream was given, and the errors that a wait must
// throw.
//
// CUDA has neither names of ops nor errors of one stream. A failed launch is known on the host at
// once; a kernel's report of bad input is read at a host wait. Such a wait must know which ops of
// which streams it depends on, so streams and events carry a vector clock (docs/adr/0006). Used by
// CudaStream and CudaEvent. Thread rule: the host thread that enqueues.
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

// The ops of one stream. Owned by the device, which outlives streams and events, so that an event
// may refer to it after its stream is gone.
class CudaLedger {
 public:
  // `word` is pinned memory, zero, and outlives the ledger.
  CudaLedger(std::string stream_name, uint64_t* word)
      : stream_name_(std::move(stream_name)), word_(word) {}

  const std::string& stream_name() const { return stream_name_; }

  // Counts an op and returns its serial, which is never 0.
  uint32_t add_op(const char* op_name);
  uint32_t newest_serial() const { return serial_; }

  // The newest ops, newest first: "matmul, rms_norm"; empty when there were none.
  std::string newest_ops() const;

  // A report for kernels of the newest op; `text` is a fmt format with one {} for the row. With
  // `in_graph` the report has no serial, since a graph's ops run at any later time.
  // REQUIRES: op_name and text live as long as the device; at most 255 different pairs.
  CudaReport make_report(const char* op_name, const char* text, bool in_graph);

  // The error reported by a kernel of an op up to `serial` or of a graph; null if there is none.
  SharedError reported(uint32_t serial);

 private:
  struct Message {
    const char* op_name;
    const char* text;
  };
  static constexpr uint32_t kNumNewest = 8;  // ops per stream named in an error of an unknown op

  SharedError read_word(uint64_t word) const;

  const std::string stream_name_;
  uint64_t* const word_;  // the stream's report word (cuda_report.h)
  uint32_t serial_ = 0;   // of the newest op; wraps, but is never 0 for an op
  std::array<const char*, kNumNewest> newest_ = {};
  std::vector<Message> messages_;  // a report has the index + 1
  SharedError reported_;           // set once the word was read and was not 0
  uint32_t reported_serial_ = 0;   // of that report; 0: of a graph
};

// The ops that a point in a stream's work depends on (a vector clock), and their known error.
class CudaPast {
 public:
  // Adds all ops of `ledger` up to `serial`.
  void reach(CudaLedger* ledger, uint32_t serial);

  // Adds the past of an event or graph. Keeps its own error if it has one.
  void join(const CudaPast& other);

  // The first error known on the host, from an op that failed when it was enqueued.
  const SharedError& error() const { return error_; }
  void set_error(SharedError error) { error_ = std::move(error); }

  // The first report of a kernel of this past, else error(); null if there is neither.
  // REQUIRES: the host has waited for the work; otherwise a report may be missed.
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
