// StoreWriter and StoreReader: bounded, in order, every block ends once, and many threads at once.
#include <map>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "io/temp_dir.h"
#include "store/store_reader.h"
#include "store/store_rig.h"
#include "store/store_writer.h"
#include "support/call_gate.h"
#include "support/sanitizer.h"

namespace sluice {
namespace {

constexpr std::chrono::seconds kLong{120};

using testing::CallGate;

// A hook of the files whose first calls stand still until the gate is open.
auto first_calls_through(CallGate& gate, int64_t num_calls) {
  return [&gate, num_calls](int64_t call) {
    if (call < num_calls) gate.pass();
    return 0;  // no error
  };
}

// A block with the memory that a writer reads.
struct HeldBlock {
  explicit HeldBlock(TestBlock b) : block(std::move(b)), kv(block.kv()) {}

  StoreWrite write(std::function<void(WriteResult)> on_done) const {
    return {.place = block.place,
            .tokens = block.tokens,
            .layers = layers_of(std::span<const std::byte>(kv), block.layout),
            .on_done = std::move(on_done)};
  }

  TestBlock block;
  std::vector<std::byte> kv;
};

std::vector<HeldBlock> hold(const std::vector<TestBlock>& chain) {
  return {chain.begin(), chain.end()};
}

TEST(StoreWriter, WritesBehindAndSkipsWhatOverflows) {
  const TempDir dir;
  FaultyFiles files;
  CallGate gate;
  files.on_write = first_calls_through(gate, 1);
  BlockStore store(test_options(dir.path()), files);
  StoreWriter writer(store, 2);
  const auto blocks = hold(make_chain(test_format(), 1, 5));
  std::atomic<int> num_done = 0;
  const auto count = [&](WriteResult result) { num_done += result == WriteResult::kWritten; };
  EXPECT_TRUE(writer.offer(blocks[0].write(count)));
  gate.wait_for(1);
  EXPECT_TRUE(writer.offer(blocks[1].write(count)));
  EXPECT_TRUE(writer.offer(blocks[2].write(count)));
  EXPECT_FALSE(writer.offer(blocks[3].write(count))) << "one is written, two wait";
  EXPECT_FALSE(writer.drain(std::chrono::milliseconds(1)));
  EXPECT_EQ(writer.num_waiting(), 2u);
  EXPECT_EQ(num_done, 0) << "the disk stands still, and no call waited";
  gate.open();
  EXPECT_TRUE(writer.drain(kLong));
  EXPECT_EQ(num_done, 3);
  EXPECT_EQ(writer.num_skipped(), 1);
  EXPECT_TRUE(writer.offer(blocks[4].write({})));
  EXPECT_TRUE(writer.drain(kLong));
  for (const size_t i : {0, 1, 2, 4}) {
    EXPECT_EQ(read_test_block(store, blocks[i].block), ReadBack::kRight) << i;
  }
  EXPECT_FALSE(store.contains(blocks[3].block.place.key));
}

TEST(StoreWriter, EndsEveryBlockOnce) {
  const TempDir dir;
  FaultyFiles files;
  CallGate gate;
  files.on_write = first_calls_through(gate, 1);
  BlockStore store(test_options(dir.path()), files);
  const auto blocks = hold(make_chain(test_format(), 2, 4));
  std::mutex mutex;
  std::map<WriteResult, int> ends;
  std::thread opener;
  {
    StoreWriter writer(store, 10);
    for (const HeldBlock& block : blocks) {
      writer.offer(block.write([&](WriteResult result) {
        const std::lock_guard lock(mutex);
        ++ends[result];
      }));
    }
    gate.wait_for(1);
    // The destructor drops the three that wait, and then waits for the first.
    opener = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      gate.open();
    });
  }
  opener.join();
  EXPECT_EQ(ends,
            (std::map<WriteResult, int>{{WriteResult::kWritten, 1}, {WriteResult::kDropped, 3}}));
}

TEST(StoreReader, ReadsSeveralAtOnceIntoGivenMemory) {
  const TempDir dir;
  FaultyFiles files;
  BlockStore store(test_options(dir.path()), files);
  const auto chain = make_chain(test_format(), 3, 6);
  for (size_t i = 0; i + 1 < chain.size(); ++i) write_test_block(store, chain[i]);
  CallGate gate;
  files.on_read = first_calls_through(gate, 3);

  std::vector<std::vector<std::byte>> memory(
      chain.size(), std::vector<std::byte>(static_cast<size_t>(kTestLayout.kv_bytes())));
  std::vector<std::atomic<int>> ends(chain.size());
  StoreReader reader(store, 3);
  for (size_t i = 0; i < chain.size(); ++i) {
    reader.submit({.place = chain[i].place,
                   .tokens = chain[i].tokens,
                   .layers = layers_of(std::span(memory[i]), kTestLayout),
                   .is_wanted = [i] { return i != 4; },
                   .on_done = [&ends, i](bool is_hit, auto) { ends[i] += is_hit ? 1 : 100; }});
  }
  gate.wait_for(3);
  EXPECT_EQ(reader.num_waiting(), 3u) << "three are read, three wait";
  gate.open();
  ASSERT_TRUE(reader.wait(kLong));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ends[i], 1) << i;
    EXPECT_EQ(memory[i], chain[i].kv()) << i;
  }
  EXPECT_EQ(ends[4], 100) << "it is not wanted any more";
  EXPECT_EQ(ends[5], 100) << "not stored";
  EXPECT_EQ(store.stats().num_misses, 1);
}

// Writers, readers and eviction on one store and on another one of the same directory.
TEST(StoreThreads, AllAtOnceAreNeverWrong) {
  const TempDir dir;
  BlockStoreOptions options = test_options(dir.path());
  options.max_bytes = 20 * 11192;
  BlockStore first(options), second(options);
  std::vector<std::vector<TestBlock>> chains;
  for (uint32_t seed = 0; seed < 8; ++seed) chains.push_back(make_chain(test_format(), seed, 6));
  const int rounds = kSanitized ? 300 : 2000;
  std::atomic<int> num_right = 0, num_wrong = 0;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      BlockStore& store = t % 2 == 0 ? first : second;
      for (int i = 0; i < rounds; ++i) {
        const TestBlock& block = chains[random() % chains.size()][random() % 6];
        if (random() % 3 == 0) write_test_block(store, block);
        const ReadBack read = read_test_block(store, block);
        num_right += read == ReadBack::kRight;
        num_wrong += read == ReadBack::kWrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
  EXPECT_GT(num_right, rounds / 4);
  for (BlockStore* store : {&first, &second}) {
    const StoreStats stats = store->stats();
    EXPECT_EQ(stats.num_bad, 0);
    EXPECT_GT(stats.num_evicted, 0);
    EXPECT_TRUE(stats.is_writing);
  }
  // Each store may exceed the limit by what it writes between two lists, and by the blocks that
  // were half-written when it made one.
  EXPECT_LE(list_store(dir.path()).num_bytes(),
            options.max_bytes + options.max_bytes / 8 + 4 * 11192);
  EXPECT_TRUE(list_store(dir.path()).parts.empty());
}

}  // namespace
}  // namespace sluice
