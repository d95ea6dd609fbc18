// RankThreads: the ranks after the first one, as threads of this process, each with a device of its
// own.
//
// Made by EngineStations for several ranks. Each thread makes its Rank from the first rank's plan
// and files, and then runs every pass that it is sent (StepMessage); it has no scheduler, no
// requests and no clock. A rank that fails ends the passes of all
// (device/host/rank_group.h). Thread rule: the engine's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "device/device.h"
#include "device/host/part_limit.h"
#include "device/host/rank_group.h"
#include "engine/stations/front.h"
#include "engine/stations/rank.h"
#include "engine/step_message.h"
#include "sluice/engine_options.h"

namespace sluice {

class RankThreads {
 public:
  // The device of a rank.
  using MakeDevice = std::function<std::unique_ptr<Device>(int32_t rank)>;

  // Starts the threads, which take their memory and load their weights.
  // REQUIRES: the front outlives this object; the options exist and the front's checkpoint is open
  // until await_ready has returned, or this object ends.
  RankThreads(const Front& front, const EngineOptions& options, MakeDevice make_device);
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;
  // As `stop`; then frees what the other ranks have.
  ~RankThreads();

  // Ends the work of the other ranks. Their memory stays, since work of any rank may use that of
  // all. REQUIRES: the first rank's work is done, or has failed.
  void stop();

  // Of the first rank, which is the caller's.
  RankSeat first_seat() { return seat(0); }

  // Waits until all ranks are ready. Errors: the first one of a rank: those of Rank and of
  // Rank::load_weights.
  void await_ready();

  // Each rank applies the message after those sent before, and runs its pass if it has one.
  // Errors: kDevice if a rank has failed.
  void send(const StepMessage& message);

  // Calls `use` for each rank after the first, in order, on the caller's thread, when the rank has
  // done all that was sent; it does nothing else meanwhile. An error of `use` ends the work of all
  // ranks, and is thrown. Errors: kDevice if a rank has failed. REQUIRES: ranks are ready.
  void visit(const std::function<void(int32_t rank, Rank& place)>& use);

 private:
  struct Follower {
    int32_t rank = 0;
    std::mutex mutex;  // protects what follows
    std::condition_variable changed;
    std::deque<std::shared_ptr<const StepMessage>> inbox;
    std::atomic<bool> has_news = false;  // of the inbox, to be polled without the mutex
    int64_t spin_ns = 0;                 // before it sleeps
    Rank* place = nullptr;               // of a rank that is ready
    bool is_idle = false;                // it waits for a message
    bool is_ready = false;
    bool is_closed = false;
    bool has_stopped = false;  // it enqueues no more, and its work is done
    bool may_end = false;
    std::exception_ptr error;
    std::thread thread;
  };

  RankSeat seat(int32_t rank);
  void run(Follower& follower);
  void follow(Follower& follower);
  void run_messages(Follower& follower, Rank& rank);
  void hold(Follower& follower);
  static std::shared_ptr<const StepMessage> take(Follower& follower);

  const Front& front_;
  const EngineOptions& options_;
  const MakeDevice make_device_;
  std::vector<std::byte> memory_;
  std::optional<RankGroup> group_;
  std::optional<PartLimit> part_limit_;
  std::vector<std::unique_ptr<Follower>> followers_;
};

}  // namespace sluice
