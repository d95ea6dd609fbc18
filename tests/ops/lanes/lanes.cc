// Fibers of ucontext.h.
#include "ops/lanes/lanes.h"

#include "core/error.h"

namespace sluice::lanes {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;

void yield() { swapcontext(&this_lane().context, &block().scheduler); }

void run_lane() {
  block().kernel();
  this_lane().is_done = true;
  yield();
}

void start(Lane& lane, unsigned index) {
  lane.is_done = false;
  lane.index = {index, 0, 0};
  lane.groups.clear();
  lane.group.clear();
  lane.stack.resize(kStackBytes);
  getcontext(&lane.context);
  lane.context.uc_stack.ss_sp = lane.stack.data();
  lane.context.uc_stack.ss_size = kStackBytes;
  lane.context.uc_link = nullptr;
  makecontext(&lane.context, run_lane, 0);
}

// xorshift64.
uint64_t next_random() {
  uint64_t& state = block().random;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

void run_block() {
  Block& own = block();
  std::fill_n(own.shared, kSharedBytes, 0xff);
  own.ready.clear();
  for (int i = 0; i < own.num_threads; ++i) {
    start(own.lanes[static_cast<size_t>(i)], static_cast<unsigned>(i));
    own.ready.push_back(i);
  }
  for (int num_running = own.num_threads; num_running > 0;) {
    SLUICE_CHECK(!own.ready.empty(), "{} lanes wait for others", num_running);
    std::swap(own.ready[next_random() % own.ready.size()], own.ready.back());
    own.current = own.ready.back();
    own.ready.pop_back();
    swapcontext(&own.scheduler, &this_lane().context);
    if (this_lane().is_done) --num_running;
  }
}

void meet(Meeting& meeting, int num_lanes) {
  if (std::ssize(meeting) + 1 < num_lanes) {
    meeting.push_back(block().current);
    return yield();
  }
  block().ready.insert(block().ready.end(), meeting.begin(), meeting.end());
  meeting.clear();
}

}  // namespace

Block& block() {
  static Block own;
  return own;
}

void run_grid(dim3 grid, dim3 threads, const std::function<void()>& kernel) {
  Block& own = block();
  own.num_threads = static_cast<int>(threads.x);
  SLUICE_CHECK(own.num_threads <= kMaxThreads && own.num_threads % kWarp == 0, "{} threads",
               own.num_threads);
  own.size = threads;
  own.grid = grid;
  own.kernel = kernel;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        own.index = {x, y, z};
        run_block();
      }
    }
  }
}

void meet_warp() { meet(block().of_warp[warp()], kWarp); }
void let_others_run() {
  block().ready.push_back(block().current);
  yield();
}
void meet_block() { meet(block().of_block, block().num_threads); }

void start_copy(uint32_t to, const void* from, size_t num_bytes) {
  SLUICE_CHECK(to % num_bytes == 0 && reinterpret_cast<uintptr_t>(from) % num_bytes == 0,
               "copy of {} bytes to {}", num_bytes, to);
  this_lane().group.push_back({to, from, num_bytes});
}

void end_copies() {
  this_lane().groups.push_back(std::move(this_lane().group));
  this_lane().group.clear();
}

void wait_for_copies(size_t num_left) {
  auto& groups = this_lane().groups;
  while (groups.size() > num_left) {
    for (const Copy& copy : groups.front()) {
      unsigned char* to = block().shared + copy.to;
      if (copy.from == nullptr) {
        std::fill_n(to, copy.num_bytes, 0);
      } else {
        std::memcpy(to, copy.from, copy.num_bytes);
      }
    }
    groups.erase(groups.begin());
  }
}

}  // namespace sluice::lanes
