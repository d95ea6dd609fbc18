// HttpMetrics: counts of what happens to requests before and beside the engine.
//
// The server's threads add to it from the moment it listens, before there is a model. Thread rule:
// any thread, any member, any time. The counts by route are under a mutex, since they are made as
// they occur; the engine's thread has no part in them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "server/metrics/exposition.h"
#include "server/metrics/instruments.h"

namespace sluice::metrics {

// Why a valid request was not accepted.
enum class Rejection {
  kWaiting,        // too many requests wait
  kWaitingTokens,  // too many prompt tokens wait
  kLoading,
  kDraining,
  kDead,
};
inline constexpr size_t kNumRejections = 5;

// Why the server cancelled a request that it had accepted.
enum class AbortReason { kDisconnect, kSlowClient, kTimeout, kDrain };
inline constexpr size_t kNumAbortReasons = 4;

// "waiting", "waiting_tokens", "loading", "draining", "dead".
std::string_view rejection_name(Rejection reason);
// "disconnect", "slow_client", "timeout", "drain".
std::string_view abort_reason_name(AbortReason reason);

class HttpMetrics {
 public:
  // A request was answered, or refused before it reached its route. REQUIRES: the route is one of
  // few texts that the program has, such as the pattern of a route, never the path that a client
  // sent: each is kept for good.
  void answered(std::string_view route, int status);
  void rejected(Rejection reason) { rejected_[static_cast<size_t>(reason)].add(); }
  void aborted(AbortReason reason) { aborted_[static_cast<size_t>(reason)].add(); }

  // Members of bodies that the server does not know. Their names are the clients', so they are no
  // labels.
  void unknown_fields(size_t count) { unknown_fields_.add(static_cast<int64_t>(count)); }

  void append_to(Exposition& page) const;

 private:
  std::array<Counter, kNumRejections> rejected_;
  std::array<Counter, kNumAbortReasons> aborted_;
  Counter unknown_fields_;
  mutable std::mutex mutex_;  // of answered_
  std::map<std::pair<std::string, int>, int64_t> answered_;
};

}  // namespace sluice::metrics
