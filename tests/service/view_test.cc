// What watchers of a service see: blocks, progress, reads of pages; and when they see nothing.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "engine/store/store_engine.h"
#include "service/service_rig.h"

namespace sluice {
namespace {

using testing::EventLog;
using testing::make_test_device;
using testing::random_tokens;
using testing::sampled;
using testing::served_engine;
using testing::served_offloaded;
using testing::served_options;
using testing::submit;

using ViewPtr = std::shared_ptr<const EngineView>;

// Keeps all views of a watcher.
class ViewLog {
 public:
  ViewSink sink() {
    return [this](const ViewPtr& view) {
      const std::lock_guard lock(mutex_);
      views_.push_back(view);
      changed_.notify_all();
      return true;
    };
  }
  std::vector<ViewPtr> views() const {
    const std::lock_guard lock(mutex_);
    return views_;
  }
  // The first view for which `is_wanted`; waits for it.
  template <typename IsWanted>
  ViewPtr wait_for(IsWanted is_wanted) {
    std::unique_lock lock(mutex_);
    ViewPtr found;
    changed_.wait(lock, [&] {
      for (const ViewPtr& view : views_) {
        if (!found && is_wanted(*view)) found = view;
      }
      return found != nullptr;
    });
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<ViewPtr> views_;
};

// Its steps take long enough that each has a view.
std::unique_ptr<LlmEngine> slow_engine(const EngineOptions& options) {
  return std::make_unique<LlmEngine>(
      options, LlmEngine::Parts{.device = make_test_device({.num_threads = 2}), .now_ns = [] {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(35));
                                  return int64_t{0};
                                }});
}

// Each block is in a request or a pin, kept, or blank; blocks of several of these count once.
void expect_complete(const EngineView& view) {
  std::set<int32_t> held, kept;
  for (const SequenceView& sequence : view.sequences) {
    for (const BlockCell& block : sequence.blocks) held.insert(block.id);
  }
  for (const PinView& pin : view.pins) {
    for (const BlockCell& block : pin.blocks) EXPECT_TRUE(held.insert(block.id).second);
  }
  for (const auto& run : view.kept) {
    for (const BlockCell& block : run) {
      EXPECT_TRUE(kept.insert(block.id).second) << block.id << " is kept twice";
      EXPECT_FALSE(held.contains(block.id)) << block.id << " is held and kept";
    }
  }
  EXPECT_EQ(std::ssize(held) + std::ssize(kept) + view.num_blank, view.kv.num_blocks);
}

bool is_at_rest(const EngineView& view) {
  return view.sequences.empty() && view.stats.num_generated_tokens > 0;
}

size_t num_in(const EngineView& view, KvPlace place) {
  size_t count = 0;
  for (const SequenceView& sequence : view.sequences) {
    for (const BlockCell& block : sequence.blocks) count += block.place == place ? 1 : 0;
  }
  return count;
}

TEST(ServiceViews, ShowAPromptFromItsFirstBlockToTheCache) {
  for (const EngineOptions& options : {served_options(), served_offloaded()}) {
    ViewLog log;
    EventLog events;
    EngineService service([&] { return slow_engine(options); }, {});
    service.watch(log.sink());
    const ViewPtr first = log.wait_for([](const EngineView&) { return true; });
    EXPECT_EQ(first->num_blank, first->kv.num_blocks);
    const int64_t id = submit(service, {random_tokens(200, 1), sampled(10, 1)}, events);
    const ViewPtr rest = log.wait_for(is_at_rest);
    bool has_computed = false;
    for (const ViewPtr& view : log.views()) {
      expect_complete(*view);
      EXPECT_TRUE(view->reads.empty());
      has_computed = has_computed || num_in(*view, KvPlace::kComputing) > 0;
      for (const SequenceView& sequence : view->sequences) {
        EXPECT_EQ(sequence.request_id, id);
        EXPECT_EQ(sequence.num_prompt_tokens, 200);
        EXPECT_LE(sequence.num_done, 200);
      }
    }
    EXPECT_TRUE(has_computed);
    // The prompt and 9 of the tokens have KV: whole blocks of 16.
    ASSERT_EQ(rest->kept.size(), 1U);
    EXPECT_EQ(rest->kept[0].size(), (200U + 9) / 16);
    const KvPlace place = options.kv.offload == KvOffload::kOff ? KvPlace::kDevice : KvPlace::kHost;
    for (const BlockCell& block : rest->kept[0]) EXPECT_EQ(block.place, place);
    EXPECT_EQ(rest->num_blank, rest->kv.num_blocks - std::ssize(rest->kept[0]));
  }
}

// The pin of a prompt, while a request that finds it runs, and until it is deleted.
TEST(ServiceViews, ShowPinsWithTheirBlocks) {
  for (const EngineOptions& options : {served_options(), served_offloaded()}) {
    ViewLog log;
    EventLog events;
    EngineService service([&] { return served_engine(options); }, {});
    ServiceRequest pin{.prompt = random_tokens(200, 1), .params = sampled(1, 1), .pin = "a.b-c"};
    ASSERT_TRUE(service.submit(std::move(pin), events.sink()).accepted());
    events.wait_end();
    service.watch(log.sink());
    const ViewPtr view = log.wait_for([](const EngineView& v) { return !v.pins.empty(); });
    expect_complete(*view);
    ASSERT_EQ(view->pins.size(), 1U);
    EXPECT_EQ(view->pins[0].name, "a.b-c");
    EXPECT_EQ(view->pins[0].blocks.size(), 200U / 16);
    const KvPlace place = options.kv.offload == KvOffload::kOff ? KvPlace::kDevice : KvPlace::kHost;
    for (const BlockCell& block : view->pins[0].blocks) EXPECT_EQ(block.place, place);
    EXPECT_TRUE(view->kept.empty());
    ASSERT_TRUE(service.unpin("a.b-c"));
    const ViewPtr gone = log.wait_for([](const EngineView& v) { return !v.kept.empty(); });
    expect_complete(*gone);
    EXPECT_TRUE(gone->pins.empty());
    EXPECT_EQ(gone->kept[0].size(), 200U / 16);
  }
}

// The history of the second half of a prompt comes through both slots, one block at a time.
TEST(ServiceViews, ShowWhatTheRingHas) {
  ViewLog log;
  EventLog events;
  EngineOptions options = served_offloaded();
  options.prefill_chunk_tokens = 32;
  EngineService service([&] { return slow_engine(options); }, {});
  service.watch(log.sink());
  submit(service, {random_tokens(400, 1), sampled(20, 1)}, events);
  log.wait_for(is_at_rest);
  size_t num_shown = 0;
  for (const ViewPtr& view : log.views()) {
    EXPECT_EQ(view->kv.slot_blocks, 1);
    ASSERT_EQ(view->slots.size(), 2U);
    for (const SlotView& slot : view->slots) {
      EXPECT_FALSE(slot.has_pages) << "full attention lists none";
      EXPECT_EQ(slot.blocks.size(), slot.is_held ? 1U : 0U);
      if (!slot.is_held) continue;
      EXPECT_TRUE(slot.layer == 0 || slot.layer == 1) << slot.layer;
      const auto& blocks = view->sequences.at(0).blocks;
      const auto block = std::ranges::find(blocks, slot.blocks[0], &BlockCell::id);
      ASSERT_NE(block, blocks.end()) << slot.blocks[0];
      EXPECT_EQ(block->place, KvPlace::kHost);
      ++num_shown;
    }
  }
  EXPECT_GT(num_shown, 0U);
}

// Of three pins memory has room for two.
TEST(ServiceViews, ShowPinsThatOnlyTheStoreHas) {
  const testing::TemporaryStore store;
  EngineOptions options = served_offloaded(40);
  options.max_model_len = 256;
  options.kv_store.dir = store.path().string();
  ViewLog log;
  EngineService service([&] { return served_engine(options); }, {});
  for (const char* name : {"a", "b", "c"}) {
    EventLog events;
    ServiceRequest pin{.prompt = random_tokens(200, static_cast<uint64_t>(name[0])),
                       .params = sampled(1, 1),
                       .pin = name};
    ASSERT_TRUE(service.submit(std::move(pin), events.sink()).accepted());
    events.wait_end();
  }
  service.watch(log.sink());
  const ViewPtr view = log.wait_for([](const EngineView& v) { return v.pins.size() == 3; });
  int64_t num_held = 0;
  for (const PinView& pin : view->pins) {
    EXPECT_EQ(std::ssize(pin.blocks) + pin.num_disk_blocks, 200 / 16) << pin.name;
    num_held += std::ssize(pin.blocks);
  }
  EXPECT_EQ(num_held, 40 - 256 / 16);
}

// Files that can be read only once the gate is open.
class GatedFiles : public StoreFiles {
 public:
  int read(int fd, uint64_t offset, std::span<std::byte> dst) override {
    gate.pass();
    return StoreFiles::read(fd, offset, dst);
  }
  testing::CallGate gate;
};

TEST(ServiceViews, ShowBlocksThatAreReadFromTheStore) {
  for (EngineOptions options : {served_options(), served_offloaded()}) {
    const testing::TemporaryStore store;
    options.kv_store.dir = store.path().string();
    options.kv_store.min_tokens = 0;
    const testing::Job job{random_tokens(200, 1), sampled(4, 1)};
    testing::run_jobs(*served_engine(options), {job});
    GatedFiles files;
    ViewLog log;
    EventLog events;
    EngineService service(
        [&] {
          return std::make_unique<LlmEngine>(
              options, LlmEngine::Parts{.device = make_test_device({.num_threads = 2}),
                                        .store_files = &files});
        },
        {});
    service.watch(log.sink());
    submit(service, job, events);
    const ViewPtr view =
        log.wait_for([](const EngineView& v) { return num_in(v, KvPlace::kLoading) > 0; });
    files.gate.open();
    expect_complete(*view);
    EXPECT_EQ(num_in(*view, KvPlace::kLoading), 199U / 16) << "the last token is computed";
    EXPECT_EQ(view->sequences[0].blocks[0].place, KvPlace::kLoading);
    EXPECT_EQ(view->sequences[0].num_done, 0);
    events.wait_end();
    EXPECT_EQ(events.joined().num_stored_tokens, 199 / 16 * 16);
    log.wait_for([](const EngineView& v) { return is_at_rest(v) && !v.kept.empty(); });
    EXPECT_EQ(num_in(*log.views().back(), KvPlace::kLoading), 0U);
  }
}

TEST(ServiceViews, CountThePagesThatDecodeReads) {
  EngineOptions options = served_offloaded();
  options.sparse.policy = "full+quest";
  options.sparse.topk_tokens = 32;
  options.sparse.sink_tokens = 16;
  options.sparse.recent_tokens = 16;
  for (const bool is_asked_for : {true, false}) {
    options.count_page_reads = is_asked_for;
    ViewLog log;
    EventLog events;
    EngineService service([&] { return served_engine(options); }, {});
    service.watch(log.sink());
    log.wait_for([](const EngineView&) { return true; });
    submit(service, {random_tokens(200, 1), sampled(40, 1)}, events);
    log.wait_for(is_at_rest);
    uint64_t num_reads = 0;
    for (const ViewPtr& view : log.views()) {
      EXPECT_EQ(view->page_tokens, is_asked_for ? 16 : 0);
      for (const BlockReads& block : view->reads) {
        for (const uint32_t count : block.pages) num_reads += count;
      }
    }
    // 39 steps, 2 layers, 2 KV heads, 2 pages each; of several ranks the first one counts its own.
    const auto num_ranks = static_cast<uint64_t>(testing::test_num_ranks());
    EXPECT_EQ(num_reads, is_asked_for ? 39U * 2 * 2 * 2 / num_ranks : 0U);
  }
}

TEST(ServiceViews, GoToThoseWhoWatch) {
  ViewLog log;
  EventLog events, more;
  std::promise<ViewPtr> once;
  EngineService service([&] { return served_engine(served_options()); }, {});
  submit(service, {random_tokens(20, 1), sampled(4, 1)}, events);
  events.wait_end();
  service.watch([&](const ViewPtr& view) {
    once.set_value(view);  // a second call would throw
    return false;
  });
  EXPECT_EQ(once.get_future().get()->kept.size(), 1U) << "an idle engine shows itself, too";
  service.watch(log.sink());
  log.wait_for([](const EngineView&) { return true; });
  submit(service, {random_tokens(20, 2), sampled(4, 1)}, more);
  log.wait_for([](const EngineView& view) { return view.kept.size() == 2; });
}

TEST(ServiceViews, EndWithTheDrain) {
  EngineService service([&] { return served_engine(served_options()); }, {});
  auto alive = std::make_shared<int>(0);
  const std::weak_ptr<int> sink = alive;
  std::promise<void> seen;
  service.watch([kept = std::move(alive), &seen](const ViewPtr&) {
    seen.set_value();
    return true;
  });
  seen.get_future().wait();
  EXPECT_FALSE(sink.expired());
  service.drain(std::chrono::seconds(10));
  EXPECT_TRUE(sink.expired());
  service.watch([](const ViewPtr&) {
    ADD_FAILURE() << "a view after the drain";
    return true;
  });
}

TEST(ServiceTimeline, HasTheStreamsOfTheEngine) {
  EngineOptions options = served_offloaded();
  EngineService plain([&] { return served_engine(options); }, {});
  EXPECT_FALSE(plain.timeline(std::chrono::seconds(1)).has_value());
  options.timeline_ring = true;
  ViewLog log;
  EventLog events;
  EngineService service(options, {});
  submit(service, {random_tokens(200, 1), sampled(4, 1)}, events);
  events.wait_end();
  // A view shows that the engine is at rest and has handed over all spans.
  service.watch(log.sink());
  log.wait_for([](const EngineView&) { return true; });
  const auto streams = service.timeline(std::chrono::seconds(10));
  ASSERT_TRUE(streams.has_value());
  std::set<std::string> names;
  for (const StreamSpans& stream : *streams) {
    names.insert(stream.stream_name);
    for (const StreamSpans::Span& span : stream.spans) EXPECT_LE(span.begin_ns, span.end_ns);
  }
  for (const char* name : {"compute", "engine", "slot 0", "slot 1", "write-back"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace sluice
