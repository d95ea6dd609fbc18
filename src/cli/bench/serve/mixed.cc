// Scenario mixed: many requests of all kinds, of which one in five is left by its client. In the
// end nothing may hold memory, and the process may not have grown.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/bench/measure.h"
#include "cli/bench/serve/bench_server.h"
#include "cli/bench/serve/scenario.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "cli/units.h"

namespace sluice::cli {
namespace {

constexpr std::chrono::milliseconds kTick{20};  // between two looks at the crowd
constexpr int32_t kLeavingOneIn = 5;
constexpr int32_t kAskedAgainOneIn = 61;  // no multiple of the others
constexpr int32_t kSharedOneIn = 3;       // prompts that begin alike, by some blocks
constexpr int64_t kSharedTokens = 256;
constexpr size_t kQuarters = 4;
constexpr size_t kShownFaults = 3;  // more say the same

struct MixedWork {
  int32_t num_requests = 0;
  int32_t least_tokens = 0, most_tokens = 0;
  int32_t vocab_size = 0;
  uint64_t seed = 0;
};

// How request i looks follows from its index alone, so that it can be asked again, and a run can be
// repeated. The order in which requests meet differs.
struct MixedRequest {
  CompletionRequest request;
  bool leaves = false;
  size_t leave_after = 0;  // events; 0: after a pause, whatever has come
  std::chrono::milliseconds pause{0};
  LoadRequest::Leaving how = LoadRequest::Leaving::kFin;
};

// Drawn from a sequence of its own for each request, so that the threads' order changes nothing.
MixedRequest make_request(const MixedWork& work, int32_t index) {
  const auto seed = work.seed + static_cast<uint64_t>(index);
  const std::vector<int32_t> draws = random_prompt(6, 1 << 20, seed + (uint64_t{1} << 32));
  const int32_t span = work.most_tokens - work.least_tokens + 1;
  MixedRequest mixed;
  std::vector<int32_t>& prompt = mixed.request.prompt;
  if (index % kSharedOneIn == 0) prompt = random_prompt(kSharedTokens, work.vocab_size, work.seed);
  const std::vector<int32_t> own =
      random_prompt(work.least_tokens + draws[0] % span, work.vocab_size, seed);
  prompt.insert(prompt.end(), own.begin(), own.end());
  mixed.request.max_tokens = work.least_tokens + draws[1] % span;
  mixed.request.seed = index;
  mixed.request.n = 1 + draws[2] % 4;
  mixed.request.stream = draws[3] % 2 == 0;
  mixed.leaves = index % kLeavingOneIn == 0;
  mixed.leave_after = mixed.request.stream ? static_cast<size_t>(draws[4] % 6) : 0;
  mixed.pause = std::chrono::milliseconds(draws[4] % 32);
  mixed.how = draws[5] % 2 == 0 ? LoadRequest::Leaving::kFin : LoadRequest::Leaving::kReset;
  return mixed;
}

// Resident memory of this process.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// An answer that will be asked for again.
struct Sample {
  int32_t index = 0;
  std::vector<std::string> texts;
};

// Sends requests from several threads, each of which waits for its answer before the next. The
// threads sleep meanwhile: what they cost is the making and reading of JSON, which is the client's
// and not in the time that LoadClient reports.
class Crowd {
 public:
  Crowd(LoadClient& client, const MixedWork& work, int32_t num_threads)
      : client_(client), work_(work) {
    for (int32_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~Crowd() { join(); }

  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int32_t num_done() const { return num_done_; }
  int32_t num_whole() const { return num_whole_; }
  int32_t num_left() const { return num_left_; }
  // What the first answers said that were neither whole nor left. REQUIRES: join.
  const std::vector<std::string>& faults() const { return faults_; }
  const std::vector<Sample>& samples() const { return samples_; }

 private:
  // Each thread takes the next request, so that slow answers do not leave others idle.
  void run() {
    try {
      for (int32_t i = next_++; i < work_.num_requests && !interrupted(); i = next_++) {
        try {
          ask(i);
        } catch (const std::exception& error) {  // an answer that is no JSON
          add_fault(error.what());
        }
        ++num_done_;
      }
    } catch (const Interrupted&) {  // the main thread sees it, too
    }
  }

  // One request to its end: read in full and counted, or left as it says.
  void ask(int32_t index) {
    const MixedRequest mixed = make_request(work_, index);
    const LoadRequest request = client_.post(kCompletionsPath, completion_json(mixed.request));
    if (mixed.leaves) {
      if (mixed.leave_after == 0) std::this_thread::sleep_for(mixed.pause);
      request.wait_for_events(mixed.leave_after);
      request.leave(mixed.how);
      ++num_left_;
      return;
    }
    request.wait();
    Completion completion = read_completion(request.received());
    const auto num_choices = static_cast<size_t>(mixed.request.n);
    if (completion.is_whole && completion.texts.size() == num_choices) {
      ++num_whole_;
    } else {
      add_fault(fmt::format("{} {}", completion.status, completion.fault));
    }
    if (index % kAskedAgainOneIn != 1) return;
    const std::lock_guard lock(mutex_);
    samples_.push_back({index, std::move(completion.texts)});
  }

  void add_fault(std::string fault) {
    const std::lock_guard lock(mutex_);
    if (faults_.size() < kShownFaults) faults_.push_back(std::move(fault));
  }

  LoadClient& client_;
  const MixedWork work_;
  std::atomic<int32_t> next_ = 0, num_done_ = 0, num_whole_ = 0, num_left_ = 0;
  std::mutex mutex_;  // of the next two
  std::vector<std::string> faults_;
  std::vector<Sample> samples_;
  std::vector<std::thread> threads_;
};

// What came of it.
struct Mixed {
  double seconds = 0;
  double client_cpu_seconds = 0;
  double idle_after_seconds = 0;
  int32_t num_whole = 0, num_left = 0;
  std::vector<std::string> faults;
  ServerCounts counts;
  std::vector<int64_t> resident;  // after each quarter of the requests
  size_t num_asked_again = 0, num_equal = 0;
};

// Shows the progress and reads the memory whenever another quarter of the requests has ended. The
// first quarter is the warm-up of allocators, caches and threads: growth counts from its end on.
void watch(const Crowd& crowd, const MixedWork& work, Mixed* mixed) {
  ProgressLine line("sending mixed requests");
  while (crowd.num_done() < work.num_requests) {
    if (interrupted()) throw Interrupted();
    const double share = static_cast<double>(crowd.num_done()) / work.num_requests;
    line.update(share);
    const auto num_quarters = static_cast<size_t>(share * kQuarters);
    while (mixed->resident.size() < num_quarters) mixed->resident.push_back(resident_bytes());
    std::this_thread::sleep_for(kTick);
  }
}

// Alone and without a stream, where there was a crowd and perhaps a stream.
void ask_again(LoadClient& client, const MixedWork& work, const std::vector<Sample>& samples,
               Mixed* mixed) {
  for (const Sample& sample : samples) {
    CompletionRequest request = make_request(work, sample.index).request;
    request.stream = false;
    const Completion again = complete(client, request, "a request that was asked again");
    mixed->num_equal += again.texts == sample.texts ? 1 : 0;
  }
  mixed->num_asked_again = samples.size();
}

// Counts are read when the engine is idle: until then requests of clients that left still run.
Mixed measure(const BenchServeCommand& command, const MixedWork& work, BenchServer& server) {
  Mixed mixed;
  const ServerCounts before = server.counts();
  const double client_before = server.client().cpu_seconds();
  const LoadTime start = LoadClock::now();
  Crowd crowd(server.client(), work, command.concurrency);
  watch(crowd, work, &mixed);
  crowd.join();
  const LoadTime end = LoadClock::now();
  mixed.seconds = seconds_between(start, end);
  mixed.idle_after_seconds = seconds_between(end, wait_for_idle(server.client(), kGiveUp));
  mixed.client_cpu_seconds = server.client().cpu_seconds() - client_before;
  while (mixed.resident.size() < kQuarters) mixed.resident.push_back(resident_bytes());
  mixed.counts = counted_between(before, server.counts());
  mixed.num_whole = crowd.num_whole();
  mixed.num_left = crowd.num_left();
  mixed.faults = crowd.faults();
  ask_again(server.client(), work, crowd.samples(), &mixed);
  return mixed;
}

// What should be zero has a line of its own, with what happened if it is not.
std::string mixed_text(const MixedWork& work, const Mixed& mixed) {
  std::string resident;
  for (const int64_t bytes : mixed.resident) {
    resident += (resident.empty() ? "" : ", ") + format_bytes(static_cast<double>(bytes));
  }
  std::string text = fmt::format(
      "{} requests in {}: {} answered, {} left by their client, {} failed\n"
      "{} tokens generated, {} prompt tokens computed and {} found, {} preemptions\n"
      "afterwards {} requests run or wait and {} of KV is held; idle after {}\n"
      "resident memory after each quarter: {}\n"
      "{} of {} answers that were asked for again are the same\n"
      "the client took {} of a core\n",
      work.num_requests, format_seconds(mixed.seconds), mixed.num_whole, mixed.num_left,
      work.num_requests - mixed.num_whole - mixed.num_left, mixed.counts.num_generated_tokens,
      mixed.counts.num_computed_tokens(), mixed.counts.num_cached_tokens,
      mixed.counts.num_preemptions, mixed.counts.num_running + mixed.counts.num_waiting,
      format_bytes(static_cast<double>(mixed.counts.used_kv_bytes)),
      short_seconds(mixed.idle_after_seconds), resident, mixed.num_equal, mixed.num_asked_again,
      format_percent(mixed.client_cpu_seconds / mixed.seconds));
  for (const std::string& fault : mixed.faults) text += "failed: " + fault + "\n";
  return text;
}

}  // namespace

// Resident memory is that of this process, so a running server has none here.
ScenarioReport bench_mixed(const BenchServeCommand& command) {
  const MixedWork work{.num_requests = command.num_requests.value_or(10'000),
                       .least_tokens = command.least_tokens,
                       .most_tokens = command.most_tokens,
                       .vocab_size = prompt_vocab_size(command),
                       .seed = static_cast<uint64_t>(command.engine.seed)};
  BenchServer server(command, command.engine);
  const Mixed mixed = measure(command, work, server);
  return {.text = mixed_text(work, mixed),
          .json = {{"num_requests", work.num_requests},
                   {"num_answered", mixed.num_whole},
                   {"num_left", mixed.num_left},
                   {"num_aborted", mixed.counts.num_aborted},
                   {"generated_tokens", mixed.counts.num_generated_tokens},
                   {"computed_tokens", mixed.counts.num_computed_tokens()},
                   {"found_tokens", mixed.counts.num_cached_tokens},
                   {"num_preemptions", mixed.counts.num_preemptions},
                   {"is_idle", mixed.counts.is_idle()},
                   {"used_kv_bytes", mixed.counts.used_kv_bytes},
                   {"resident_bytes", mixed.resident},
                   {"num_asked_again", mixed.num_asked_again},
                   {"num_equal_texts", mixed.num_equal},
                   {"seconds", mixed.seconds},
                   {"client_cpu_share", mixed.client_cpu_seconds / mixed.seconds}}};
}

}  // namespace sluice::cli
