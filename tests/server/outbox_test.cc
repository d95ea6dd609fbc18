// What waits for a client: merging, the bound on bytes, the order of calls; and the text of events.
#include "server/http/outbox.h"

#include <string>

#include <gtest/gtest.h>

#include "server/http/answer_text.h"

namespace sluice::http {
namespace {

// Deltas of one choice, as a completion's: texts that wait become one text.
class Delta : public StreamEvent {
 public:
  Delta(int choice, std::string text) : choice_(choice), text_(std::move(text)) {}
  bool absorb(StreamEvent& next) override {
    auto* delta = dynamic_cast<Delta*>(&next);
    if (delta == nullptr || delta->choice_ != choice_) return false;
    text_ += delta->text_;
    return true;
  }
  size_t size_bytes() const override { return text_.size(); }
  void render(std::string& out) const override {
    append_sse_event(out, "", std::to_string(choice_) + text_);
  }

 private:
  int choice_;
  std::string text_;
};

std::unique_ptr<StreamEvent> delta(int choice, std::string text) {
  return std::make_unique<Delta>(choice, std::move(text));
}

std::string rendered(const Outbox::Batch& batch) {
  std::string out;
  for (const auto& event : batch.events) event->render(out);
  return out;
}

TEST(Outbox, WaitingDeltasMergeAndOrderStays) {
  int wakes = 0;
  Outbox outbox(100, [&] { ++wakes; });
  EXPECT_FALSE(outbox.send(delta(0, "early")));
  ASSERT_TRUE(outbox.begin_stream({}));
  outbox.take(100);
  for (const char* text : {"a", "b", "c"}) EXPECT_TRUE(outbox.send(delta(0, text)));
  outbox.send(delta(1, "x"));
  outbox.send(delta(0, "d"));
  EXPECT_EQ(wakes, 2) << "one for the stream, one for all that wait";
  EXPECT_EQ(outbox.queued_bytes(), 5u);
  EXPECT_EQ(rendered(outbox.take(100)), "data: 0abc\n\ndata: 1x\n\ndata: 0d\n\n");
  EXPECT_EQ(outbox.queued_bytes(), 0u);
}

TEST(Outbox, MergedBytesAndThoseInFlightCount) {
  Outbox outbox(100, [] {});
  outbox.begin_stream({});
  outbox.set_in_flight(40);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(outbox.send(delta(0, "x"))) << i;
  EXPECT_EQ(outbox.queued_bytes(), 100u);
  EXPECT_FALSE(outbox.send(delta(0, "x")));
  EXPECT_TRUE(outbox.overflowed());
  EXPECT_FALSE(outbox.finish());
  int calls = 0;
  outbox.on_gone([&](Gone reason) { calls += reason == Gone::kSlowClient; });
  outbox.lose(Gone::kSlowClient);
  outbox.lose(Gone::kDisconnected);
  EXPECT_EQ(calls, 1);
  outbox.on_gone([&](Gone reason) { calls += reason == Gone::kSlowClient; });
  EXPECT_EQ(calls, 2) << "a late callback is called at once";
}

// Some clients close as soon as they have read the event that they know as the last one.
TEST(Outbox, TheLastEventLeavesWithTheEnd) {
  Outbox outbox(100, [] {});
  outbox.on_gone([](Gone) { ADD_FAILURE(); });
  ASSERT_TRUE(outbox.begin_stream({}));
  ASSERT_TRUE(outbox.send(delta(0, "a")));
  ASSERT_TRUE(outbox.finish(delta(1, "b")));
  const Outbox::Batch batch = outbox.take(100);
  EXPECT_EQ(rendered(batch), "data: 0a\n\ndata: 1b\n\n");
  EXPECT_TRUE(batch.finished);
  EXPECT_FALSE(batch.cut);
  EXPECT_FALSE(outbox.finish(delta(1, "c")));
  outbox.lose(Gone::kDisconnected);
}

TEST(Outbox, ALastEventThatIsTooMuchOverflows) {
  Outbox outbox(10, [] {});
  ASSERT_TRUE(outbox.begin_stream({}));
  EXPECT_FALSE(outbox.finish(delta(0, "more than ten")));
  EXPECT_TRUE(outbox.overflowed());
  int calls = 0;
  outbox.on_gone([&](Gone) { ++calls; });
  outbox.lose(Gone::kSlowClient);
  EXPECT_EQ(calls, 1);
}

TEST(Outbox, NobodyIsToldAfterACompleteAnswer) {
  Outbox outbox(100, [] {});
  outbox.on_gone([](Gone) { ADD_FAILURE(); });
  EXPECT_TRUE(outbox.answer({}));
  EXPECT_FALSE(outbox.answer({}));
  EXPECT_FALSE(outbox.begin_stream({}));
  outbox.lose(Gone::kDisconnected);
}

TEST(Sse, EveryLineIsADataLine) {
  std::string out;
  append_sse_event(out, "ping", "a\nb\r\nc\rd");
  EXPECT_EQ(out, "event: ping\ndata: a\ndata: b\ndata: c\ndata: d\n\n");
  out.clear();
  append_sse_event(out, "", "");
  EXPECT_EQ(out, "data: \n\n");
}

TEST(AnswerText, ValuesCannotBeginAnotherHeader) {
  std::string out;
  append_head(out, {.status = 200,
                    .content_type = "text/plain",
                    .fields = {{"X-Name", "a\r\nSet-Cookie: b"}},
                    .more_fields = {{"X-More", "c\nSet-Cookie: d"}},
                    .request_id = "r",
                    .length = 0});
  EXPECT_NE(out.find("X-Name: a  Set-Cookie: b\r\n"), std::string::npos) << out;
  EXPECT_NE(out.find("X-More: c Set-Cookie: d\r\n"), std::string::npos) << out;
}

}  // namespace
}  // namespace sluice::http
