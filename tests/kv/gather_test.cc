// Gathers: pages whose list only the device knows are copied from the host tier into a slot. Wrong
// pages, gathers that overtake their lists or the write-back of their blocks, and wrong byte counts
// would show.
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "kv/offload_engine.h"
#include "support/device_hooks.h"
#include "support/test_device.h"

namespace sluice {
namespace {

using testing::download;
using testing::enqueue_gate;
using testing::Gate;

constexpr int32_t kHeads = 2, kHeadDim = 16, kBlockTokens = 64, kPage = 16;
constexpr int32_t kNumBlocks = 3;  // of the sequence: 12 pages
constexpr int32_t kMaxPages = 8;   // of a list
constexpr KvLayout kGatherLayout{
    .num_layers = 2,
    .block = {.num_kv_heads = kHeads, .head_dim = kHeadDim, .block_tokens = kBlockTokens}};
constexpr OffloadSizes kGatherSizes{
    .num_host_blocks = 10, .num_slots = 2, .slot_blocks = 1, .stage_blocks = 3, .num_tails = 1};
constexpr int64_t kPageBytes = 2 * kPage * kHeadDim * sizeof(BFloat16);  // of one head

const std::vector<BlockId> kBlocks = {BlockId(7), BlockId(2), BlockId(5)};
using Lists = std::vector<std::vector<int32_t>>;  // one for each head, or one for all

// The value of an element: different for every place.
uint16_t element(int32_t layer, int32_t pos, int32_t head, bool is_value, int32_t d) {
  const int32_t bits = ((((layer * 256 + pos) * 2 + head) * 2 + (is_value ? 1 : 0)) * 16 + d);
  return static_cast<uint16_t>(bits);
}

class GatherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    host_ = device_->allocate(kNumBlocks * kGatherLayout.block_bytes(), MemoryKind::kPinned);
    lists_ = device_->allocate(sizeof(DeviceLists), MemoryKind::kDevice);
    pinned_lists_ = device_->allocate(sizeof(DeviceLists), MemoryKind::kPinned);
    seen_ = device_->allocate(kGatherLayout.block_bytes(), MemoryKind::kDevice);
    engine_.emplace(*device_, *compute_, kGatherLayout, kGatherSizes);
  }
  void TearDown() override { engine_->synchronize(); }

  // All arrays that the gather reads, sent in one copy.
  struct DeviceLists {
    int32_t page_ids[kHeads * kMaxPages];
    int32_t page_count[kHeads];
    int32_t block_ids[kNumBlocks];
    int32_t places[kNumBlocks];
    int32_t kv_end;
  };

  // Enqueues the transfer of lists to the device, on compute.
  void send_lists(const Lists& lists, int32_t kv_end = kNumBlocks * kBlockTokens) {
    DeviceLists values{};
    for (size_t head = 0; head < lists.size(); ++head) {
      std::copy(lists[head].begin(), lists[head].end(), values.page_ids + head * kMaxPages);
      values.page_count[head] = static_cast<int32_t>(lists[head].size());
    }
    for (int32_t i = 0; i < kNumBlocks; ++i) {
      values.block_ids[i] = kBlocks[static_cast<size_t>(i)].value;
      values.places[i] = engine_->residents().find(kBlocks[static_cast<size_t>(i)]).value;
    }
    values.kv_end = kv_end;
    num_list_heads_ = std::ssize(lists);
    std::memcpy(pinned_lists_.data(), &values, sizeof values);
    compute_->copy({.dst = lists_.data(), .src = pinned_lists_.data(), .num_bytes = sizeof values});
  }

  // Writes the sequence's keys and values and sends them to the host.
  void write_blocks() {
    for (int32_t layer = 0; layer < kGatherLayout.num_layers; ++layer) write_layer(layer);
  }
  void write_layer(int32_t layer) {
    compute_->synchronize();  // the last layer's copy must have read `host_`
    const KvBlocksView blocks{.base = host_.data(),
                              .stride_bytes = kGatherLayout.block_bytes(),
                              .num_blocks = kNumBlocks,
                              .shape = kGatherLayout.block};
    for (int32_t b = 0; b < kNumBlocks; ++b) {
      for (int32_t i = 0; i < kBlockTokens * kHeads * kHeadDim; ++i) {
        const int32_t token = i / (kHeads * kHeadDim), head = i / kHeadDim % kHeads;
        const int32_t d = i % kHeadDim, pos = b * kBlockTokens + token;
        blocks.keys<uint16_t>(b, head, token)[d] = element(layer, pos, head, false, d);
        blocks.values<uint16_t>(b, head, token)[d] = element(layer, pos, head, true, d);
      }
    }
    const KvBlocksView stage = engine_->begin_stage(LayerId(layer));
    compute_->copy({.dst = stage.base, .src = host_.data(), .num_bytes = host_.size_bytes()});
    std::vector<StagedBlock> leaving;
    for (int32_t b = 0; b < kNumBlocks; ++b) {
      leaving.push_back({.stage_id = StageId(b), .host_id = kBlocks[static_cast<size_t>(b)]});
    }
    engine_->write_back_stage(LayerId(layer), leaving);
  }

  // Begins a pass of gathers from all blocks.
  void begin_pass() {
    engine_->loader().begin_gather_pass(kBlocks);
    engine_->loader().begin_gathers();
  }

  SlotLease gather(int32_t layer, int32_t first_entry, int32_t num_entries) {
    const auto at = [&](size_t offset, std::initializer_list<int64_t> dims) {
      return TensorView(lists_.data() + offset, DType::kI32, dims);
    };
    return engine_->loader().gather(
        LayerId(layer),
        {.block_ids = at(offsetof(DeviceLists, block_ids), {kNumBlocks}),
         .places = at(offsetof(DeviceLists, places), {kNumBlocks}),
         .kv_end = at(offsetof(DeviceLists, kv_end), {1}),
         .pages = {
             .page_ids = at(offsetof(DeviceLists, page_ids), {1, num_list_heads_, 1, kMaxPages}),
             .page_count = at(offsetof(DeviceLists, page_count), {1, num_list_heads_, 1}),
             .page_tokens = kPage,
             .first_entry = first_entry,
             .num_entries = num_entries}});
  }

  // Copies a slot to `seen_`, on compute.
  void enqueue_read(SlotLease lease) {
    const KvBlocksView pages = as_pages(lease.use(*compute_), kPage);
    compute_->copy({.dst = seen_.data(), .src = pages.base, .num_bytes = seen_.size_bytes()});
    lease.release();
  }

  // The contents of the slot as compute reads them.
  std::vector<uint16_t> read(SlotLease lease) {
    enqueue_read(std::move(lease));
    return seen();
  }
  std::vector<uint16_t> seen() {
    const std::vector<std::byte> bytes = download(*compute_, seen_);
    std::vector<uint16_t> elements(bytes.size() / sizeof(uint16_t));
    std::memcpy(elements.data(), bytes.data(), bytes.size());
    return elements;
  }

  void expect_page(const std::vector<uint16_t>& slot, int32_t layer, int32_t entry, int32_t head,
                   int32_t page) {
    const KvBlockShape shape{.num_kv_heads = kHeads, .head_dim = kHeadDim, .block_tokens = kPage};
    const size_t base = shape.block_bytes() * static_cast<size_t>(entry);
    const size_t keys = (base + shape.key_offset(head)) / sizeof(uint16_t);
    const size_t values = (base + shape.value_offset(head)) / sizeof(uint16_t);
    for (int32_t i = 0; i < kPage * kHeadDim; ++i) {
      const int32_t pos = page * kPage + i / kHeadDim, d = i % kHeadDim;
      ASSERT_EQ(slot[keys + static_cast<size_t>(i)], element(layer, pos, head, false, d))
          << "entry " << entry << ", head " << head;
      ASSERT_EQ(slot[values + static_cast<size_t>(i)], element(layer, pos, head, true, d));
    }
  }

  std::unique_ptr<Device> device_ = testing::make_test_device();
  std::unique_ptr<Stream> compute_ = device_->make_stream({.name = "compute"});
  Buffer host_, lists_, pinned_lists_, seen_;
  std::optional<OffloadEngine> engine_;
  int64_t num_list_heads_ = 0;
};

using GatherDeathTest = GatherTest;

TEST_F(GatherTest, BringsThePagesOfEachHead) {
  write_blocks();
  send_lists({{0, 3, 4, 11}, {1, 2, 8, 9}});
  begin_pass();
  for (const int32_t layer : {0, 1}) {
    const std::vector<uint16_t> slot = read(gather(layer, 0, 4));
    const Lists expected = {{0, 3, 4, 11}, {1, 2, 8, 9}};
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int32_t j = 0; j < 4; ++j) {
        expect_page(slot, layer, j, head,
                    expected[static_cast<size_t>(head)][static_cast<size_t>(j)]);
      }
    }
  }
}

TEST_F(GatherTest, BringsAPartOfAListThatAllHeadsShare) {
  write_blocks();
  send_lists({{0, 2, 5, 6, 7, 10}});
  begin_pass();
  const std::vector<uint16_t> slot = read(gather(0, 4, 4));  // two entries exist
  for (int32_t head = 0; head < kHeads; ++head) {
    expect_page(slot, 0, 0, head, 7);
    expect_page(slot, 0, 1, head, 10);
  }
}

// Lists of unequal length, and pages of the tail, which is not on the host.
TEST_F(GatherTest, CountsWhatItReadAndNoMore) {
  write_blocks();
  send_lists({{0, 3, 4, 12}, {1, 2, 14}});
  begin_pass();
  std::vector<SlotLease> leases;
  leases.push_back(gather(0, 0, 4));
  leases.push_back(gather(0, 0, 1));
  for (SlotLease& lease : leases) lease.use(*compute_);
  leases.clear();
  gather(1, 2, 2).use(*compute_);
  EXPECT_EQ(engine_->loader().gathered_bytes(LayerId(0)), 0) << "nothing was fetched yet";
  engine_->loader().fetch_gather_counts();
  engine_->loader().end_gather_pass(3);
  compute_->synchronize();
  EXPECT_EQ(engine_->loader().gathered_bytes(LayerId(0)), (5 + 2) * kPageBytes);
  EXPECT_EQ(engine_->loader().gathered_bytes(LayerId(1)), 1 * kPageBytes);
  EXPECT_EQ(engine_->counters().num_loads, 3);
  EXPECT_EQ(engine_->counters().loaded_bytes[0], 0) << "counted by the device alone";
}

// The newest two of the three blocks stay on the device.
TEST_F(GatherTest, ReadsWhatStaysWhereItIs) {
  OffloadSizes sizes = kGatherSizes;
  sizes.num_resident_blocks = 2;
  engine_->synchronize();  // before its memory is freed
  engine_.emplace(*device_, *compute_, kGatherLayout, sizes);
  write_blocks();
  send_lists({{0, 3, 6, 11}});
  EXPECT_FALSE(engine_->residents().find(kBlocks[0]).valid());
  engine_->loader().begin_gather_pass(std::vector{kBlocks[0]});
  engine_->loader().begin_gathers();
  const std::vector<uint16_t> slot = read(gather(1, 0, 4));
  engine_->loader().fetch_gather_counts();
  engine_->loader().end_gather_pass(1);
  compute_->synchronize();
  const std::vector<int32_t> pages = {0, 3, 6, 11};
  for (int32_t j = 0; j < 4; ++j) {
    for (int32_t head = 0; head < kHeads; ++head) {
      expect_page(slot, 1, j, head, pages[static_cast<size_t>(j)]);
    }
  }
  EXPECT_EQ(engine_->loader().gathered_bytes(LayerId(1)), 2 * kHeads * kPageBytes)
      << "pages 0 and 3 alone";
}

// A gather that is enqueued before its lists are on the device must read the new lists.
TEST_F(GatherTest, DoesNotOvertakeTheLists) {
  write_blocks();
  send_lists({{0, 1, 2, 3}});
  compute_->synchronize();
  Gate gate;
  enqueue_gate(*compute_, gate);
  send_lists({{4, 6, 9, 11}});
  begin_pass();
  SlotLease lease = gather(0, 0, 4);
  gate.open();
  const std::vector<uint16_t> slot = read(std::move(lease));
  for (int32_t head = 0; head < kHeads; ++head) expect_page(slot, 0, 1, head, 6);
}

TEST_F(GatherTest, DoesNotOvertakeTheWriteBack) {
  send_lists({{0, 5}});
  write_blocks();
  begin_pass();
  const std::vector<uint16_t> slot = read(gather(0, 0, 2));
  expect_page(slot, 0, 1, 1, 5);
}

TEST_F(GatherTest, PassesTakeTheSlotsInTurnWithLoads) {
  write_blocks();
  send_lists({{3, 7}});
  for (int i = 0; i < 5; ++i) {
    begin_pass();
    for (const SlotContents& slot : engine_->loader().slot_contents()) {
      EXPECT_TRUE(slot.has_pages && slot.blocks.empty() && !slot.is_held);
    }
    SlotLease first = gather(0, 0, 2);
    SlotLease second = gather(1, 0, 2);
    EXPECT_FALSE(engine_->loader().can_load());
    expect_page(read(std::move(first)), 0, 1, 0, 7);
    expect_page(read(std::move(second)), 1, 1, 0, 7);
    engine_->loader().end_gather_pass(2);
    // One load is read, the other is dropped unread.
    SlotLease load = engine_->loader().load(LayerId(0), std::vector{kBlocks[1]});
    SlotLease early = engine_->loader().load_early(LayerId(1), std::vector{kBlocks[2]});
    load.use(*compute_);
    load.release();
    engine_->loader().drop(std::move(early), LayerId(1), std::vector{kBlocks[2]});
  }
  EXPECT_EQ(engine_->counters().num_loads, 5 * 4);
}

// More gathers than slots, recorded once: each replay reads the current lists and blocks, and loads
// between replays do no harm.
TEST_F(GatherTest, APassCanBeReplayed) {
  write_blocks();
  send_lists({{0, 1, 2}});
  const auto enqueue = [&] {
    for (int i = 0; i < 3; ++i) {
      engine_->loader().begin_gathers();
      SlotLease first = gather(0, 0, 2);
      SlotLease second = gather(1, 1, 2);
      first.use(*compute_);
      first.release();
      enqueue_read(std::move(second));
    }
    engine_->loader().fetch_gather_counts();
  };
  engine_->loader().begin_gather_pass(kBlocks);
  enqueue();  // loads its kernels before the capture
  const std::unique_ptr<Graph> graph = compute_->capture(enqueue);
  engine_->loader().end_gather_pass(6);
  for (int32_t page = 2; page < 12; ++page) {
    compute_->synchronize();  // before the pinned lists change
    send_lists({{0, page - 1, page}});
    write_blocks();
    engine_->loader().begin_gather_pass(kBlocks);
    compute_->launch(*graph);
    engine_->loader().end_gather_pass(6);
    engine_->loader().drop(engine_->loader().load_early(LayerId(0), std::vector{kBlocks[0]}),
                           LayerId(0), std::vector{kBlocks[0]});
    SlotLease next = engine_->loader().load_early(LayerId(1), std::vector{kBlocks[1]});
    const std::vector<uint16_t> slot = seen();
    expect_page(slot, 1, 0, 0, page - 1);
    expect_page(slot, 1, 1, 1, page);
    engine_->loader().drop(std::move(next), LayerId(1), std::vector{kBlocks[1]});
  }
  EXPECT_EQ(engine_->loader().gathered_bytes(LayerId(0)), 11 * 3 * 2 * kHeads * kPageBytes);
}

TEST_F(GatherDeathTest, ABlockThatWasNeverWrittenCannotBeGathered) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a CUDA context does not survive a fork
  EXPECT_DEATH(begin_pass(), "was never written");
}

}  // namespace
}  // namespace sluice
