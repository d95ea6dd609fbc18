// Progress from outside: lines in terminals of several widths and in pipes, and Ctrl-C within long
// work.
#include <chrono>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "cli/count_of.h"
#include "cli/program_under_test.h"
#include "cli/terminal_under_test.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/sanitizer.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

std::string needle_dir() { return (testing::source_dir() / "models/needle").string(); }

class Progress : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TempDir;
    const size_t size = kSanitized ? 30'000 : 90'000;
    std::ofstream(path("long.txt")) << slurp(needle_dir() + "/haystack.txt").substr(0, size);
  }
  static void TearDownTestSuite() {
    delete directory_;
    directory_ = nullptr;
  }
  static std::string path(const std::string& name) { return (directory_->path() / name).string(); }

  // The whole prompt in one pass, layer by layer, so that the first step takes many seconds.
  static std::vector<std::string> one_long_pass() {
    return {"run",  "-m", needle_dir(),     "-n",        "4",
            "-t",   "1",  "--kv-offload",   "layerwise", "--kv-host-bytes",
            "160M", "-f", path("long.txt"), "--chat"};
  }

  static TempDir* directory_;
};
TempDir* Progress::directory_ = nullptr;

TEST(LineEmulator, SeesALineThatIsTooLong) {
  LineEmulator emulator(10);
  emulator.feed("\r\033[K123456789\r\033[K━━━━━━━━┄");
  EXPECT_EQ(emulator.num_wrapped(), 0);
  emulator.feed("\r\033[K1234567890");
  EXPECT_EQ(emulator.num_wrapped(), 1);
}

// The width changes while the program runs; each update must read it again.
TEST_F(Progress, NeverWrapsInATerminal) {
  const std::vector<int> widths = {80, 40, 20};
  size_t stage = 0, num_at_stage = 0;
  std::vector<std::string> drawn_at(widths.size());
  const auto on_drawn = [&](int terminal, pid_t child, const std::string& drawn) {
    const size_t num_updates = count_of(drawn, "\r\033[K");
    if (stage == 0 && drawn.find(" tok/s") == std::string::npos) num_at_stage = num_updates;
    if (stage >= widths.size() || num_updates < num_at_stage + 4) return;
    size_t begin = 0;
    for (const std::string& before : drawn_at) begin += before.size();
    drawn_at[stage] = drawn.substr(begin);
    num_at_stage = num_updates;
    if (++stage < widths.size()) {
      set_terminal_columns(terminal, widths[stage]);
    } else {
      kill(child, SIGINT);
    }
  };
  const TerminalRun run =
      run_in_terminal(one_long_pass(), widths[0], {"TERM=xterm", "LC_ALL=C.UTF-8"}, on_drawn);
  EXPECT_EQ(run.exit_code, 130);
  ASSERT_EQ(stage, widths.size()) << run.drawn;
  for (size_t i = 0; i < widths.size(); ++i) {
    // The first update of a stage may have been drawn before the width changed.
    std::string text = drawn_at[i];
    if (i > 0) text = text.substr(text.find("\r\033[K", text.find("\r\033[K") + 1));
    LineEmulator emulator(widths[i]);
    emulator.feed(text);
    EXPECT_EQ(emulator.num_wrapped(), 0) << widths[i] << " columns: " << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
  for (const char* words : {" % reading", " prompt tokens", " tok/s", " left", "┄"}) {
    EXPECT_NE(drawn_at[0].find(words), std::string::npos) << words << " in " << drawn_at[0];
  }
  EXPECT_EQ(run.drawn.find("0 generated, "), std::string::npos) << run.drawn;
}

// The share moves with each layer. It stays within a layer or two of where it was at Ctrl-C,
// however long the machine takes for them; were Ctrl-C not heard, it would go on to the pass's end.
TEST_F(Progress, WithinAPassMovesAndControlCIsHeard) {
  constexpr int kTwoLayers = 100 * 2 / 6 + 1;  // of the needle's six; rounded
  std::vector<int> shares;
  size_t num_before = 0;  // shares that were seen until the signal
  const auto on_drawn = [&](int, pid_t child, const std::string& drawn) {
    const size_t at = drawn.rfind(" % reading");
    if (at == std::string::npos || at < 3) return;
    const int share = std::stoi(drawn.substr(at - 3, 3));
    if (shares.empty() || shares.back() != share) shares.push_back(share);
    if (shares.size() < 2 || num_before != 0) return;
    num_before = shares.size();
    kill(child, SIGINT);
  };
  const TerminalRun run =
      run_in_terminal(one_long_pass(), 80, {"TERM=xterm", "LC_ALL=C"}, on_drawn);
  EXPECT_EQ(run.exit_code, 130);
  ASSERT_GE(num_before, 2u) << run.drawn;
  EXPECT_LE(shares.back() - shares[num_before - 1], kTwoLayers) << run.drawn;
  EXPECT_NE(run.drawn.find("| 0 generated"), std::string::npos) << run.drawn;
  for (const char* box : {"━", "┄"}) EXPECT_EQ(run.drawn.find(box), std::string::npos);
  EXPECT_NE(run.drawn.find("...."), std::string::npos) << "an ASCII bar: " << run.drawn;
}

// Pipes and dumb terminals get plain lines.
TEST_F(Progress, IsPlainElsewhere) {
  // Lines about loading come first when loading takes more than two seconds, as under a sanitizer.
  const auto has_line_of_reading = [](const std::string& text) {
    const size_t at = text.find("reading");
    return at != std::string::npos && text.find('\n', at) != std::string::npos;
  };
  Invocation invocation{.words = one_long_pass()};
  invocation.interrupt_when = [&](const Outcome& so_far) {
    return has_line_of_reading(so_far.err);
  };
  const Outcome piped = run_sluice(invocation);
  bool is_sent = false;
  const auto on_drawn = [&](int, pid_t child, const std::string& drawn) {
    if (!has_line_of_reading(drawn) || std::exchange(is_sent, true)) return;
    kill(child, SIGINT);
  };
  const TerminalRun dumb =
      run_in_terminal(one_long_pass(), 80, {"TERM=dumb", "LC_ALL=C.UTF-8"}, on_drawn);
  // A terminal makes "\r\n" of "\n".
  for (const std::string& text : {piped.err, dumb.drawn}) {
    EXPECT_EQ(text.find('\033'), std::string::npos) << text;
    EXPECT_EQ(count_of(text, "\r"), count_of(text, "\r\n")) << text;
    EXPECT_NE(text.find("reading"), std::string::npos) << text;
    EXPECT_EQ(text.find("━"), std::string::npos) << text;
  }
  EXPECT_EQ(piped.err.find('\r'), std::string::npos) << piped.err;
}

// ---- Ctrl-C elsewhere -------------------------------------------------------------------------

// Long work must be cancelled at once; the bound allows for a busy machine.
Outcome expect_heard(const std::vector<std::string>& words, std::chrono::milliseconds after) {
  const Outcome outcome = run_sluice(Invocation{.words = words, .interrupt_after = after});
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_LT(Clock::now() - outcome.interrupted_at, std::chrono::seconds(60));
  return outcome;
}

TEST_F(Progress, TraceHearsControlC) {
  expect_heard({"trace", "-m", needle_dir(), "--kv-offload", "off", "--kv-cache-bytes", "160M",
                "-f", path("long.txt"), "-o", path("trace.safetensors")},
               std::chrono::milliseconds(500));
  EXPECT_FALSE(fs::exists(path("trace.safetensors")));
}

TEST_F(Progress, DoctorHearsControlC) {
  EXPECT_EQ(expect_heard({"doctor"}, std::chrono::milliseconds(30)).out, "");
}

// ---- Limits -----------------------------------------------------------------------------------

TEST_F(Progress, ASmallStackIsAnErrorAndNoCrash) {
  Invocation invocation{.words = {"run", "-m", needle_dir(), "-n", "4", "hi"}};
  invocation.in_child = [] {
    const rlimit limit = {64 << 10, 64 << 10};
    setrlimit(RLIMIT_STACK, &limit);
  };
  const Outcome outcome = run_sluice(invocation);
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("ulimit -s"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace sluice::cli
