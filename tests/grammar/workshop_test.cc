// The workshop: one compilation for equal structures, errors that stay with their order.
#include "grammar/workshop.h"

#include <chrono>

#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"
#include "sluice/error.h"

namespace sluice {
namespace {

StructuredOutput choice(const std::string& text) {
  return {.kind = StructureKind::kChoice, .text = {}, .choices = {text}};
}

void wait_for(GrammarWorkshop& workshop, const GrammarOrder& order) {
  while (!order.is_done()) workshop.wait(std::chrono::milliseconds(5));
}

TEST(Workshop, CompilesEqualStructuresOnce) {
  int num_tables = 0;
  GrammarWorkshop workshop([&] {
    ++num_tables;
    return byte_tokens();
  });
  const GrammarOrderPtr yes = workshop.read(choice("yes"));
  EXPECT_EQ(workshop.read(choice("yes")), yes);
  EXPECT_NE(workshop.read(choice("no")), yes);
  EXPECT_FALSE(yes->is_done());
  workshop.compile(yes);
  workshop.compile(yes);
  wait_for(workshop, *yes);
  ASSERT_NE(yes->grammar(), nullptr);
  EXPECT_TRUE(accepts(*yes->grammar(), "yes"));
  const GrammarOrderPtr no = workshop.read(choice("no"));
  workshop.compile(no);
  wait_for(workshop, *no);
  EXPECT_EQ(num_tables, 1);
}

TEST(Workshop, KeepsErrorsWithTheirOrder) {
  GrammarWorkshop workshop([]() -> TokenTable { throw Error(ErrorCode::kModel, "no table"); });
  EXPECT_THROW(workshop.read(choice("")), Error);
  const GrammarOrderPtr order = workshop.read(choice("yes"));
  workshop.compile(order);
  wait_for(workshop, *order);
  EXPECT_EQ(order->grammar(), nullptr);
  EXPECT_EQ(order->error().message(), "no table");
}

TEST(Workshop, EndsWithWorkInItsQueue) {
  std::vector<GrammarOrderPtr> orders;
  GrammarWorkshop workshop([] { return byte_tokens(); });
  for (int i = 0; i < 50; ++i) {
    orders.push_back(workshop.read(choice(std::string(static_cast<size_t>(i + 1), 'x'))));
    workshop.compile(orders.back());
  }
}

}  // namespace
}  // namespace sluice
