// The order and number of events through Delivery, and what its end does.
#include "server/app/delivery.h"

#include <array>
#include <atomic>
#include <future>
#include <thread>

#include <gtest/gtest.h>

namespace sluice::server {
namespace {

struct Receiver : EventReceiver {
  void take(size_t choice, RequestEvent event, http::TimePoint time) noexcept override {
    EXPECT_GE(time, last_time);
    last_time = time;
    choices.push_back(choice);
    ids.push_back(std::get<RequestEnd>(event).request_id);
    thread = std::this_thread::get_id();
    if (gate.valid()) gate.wait();
  }
  http::TimePoint last_time;
  std::vector<size_t> choices;
  std::vector<int64_t> ids;
  std::thread::id thread;
  std::shared_future<void> gate;
};

TEST(Delivery, DeliversAllInOrderBeforeItEnds) {
  constexpr int64_t kEvents = 20'000;
  constexpr size_t kThreads = 4;
  std::array<std::shared_ptr<Receiver>, kThreads> receivers;
  for (auto& receiver : receivers) receiver = std::make_shared<Receiver>();
  {
    Delivery delivery;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < kEvents; ++i) {
          delivery.push(receivers[t], t, RequestEnd{.request_id = i});
          if (i % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (size_t t = 0; t < kThreads; ++t) {
    ASSERT_EQ(receivers[t]->ids.size(), static_cast<size_t>(kEvents));
    for (int64_t i = 0; i < kEvents; ++i) ASSERT_EQ(receivers[t]->ids[i], i);
    EXPECT_EQ(receivers[t]->choices, std::vector<size_t>(kEvents, t));
    EXPECT_NE(receivers[t]->thread, std::this_thread::get_id());
    EXPECT_EQ(receivers[t]->thread, receivers[0]->thread) << "one thread for all";
  }
}

TEST(Delivery, PushDoesNotWaitForAReceiver) {
  std::promise<void> open;
  const auto receiver = std::make_shared<Receiver>();
  receiver->gate = open.get_future().share();
  std::weak_ptr<Receiver> alive;
  {
    Delivery delivery;
    for (int64_t i = 0; i < 1000; ++i) delivery.push(receiver, 0, RequestEnd{.request_id = i});
    auto other = std::make_shared<Receiver>();
    alive = other;
    delivery.push(std::move(other), 0, RequestEnd{});
    EXPECT_FALSE(alive.expired()) << "it lives until it has its event";
    open.set_value();
  }
  EXPECT_EQ(receiver->ids.size(), 1000u);
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace sluice::server
