// The everyday commands from outside: conversations through a pipe and a terminal, tokenize, score,
// prompts as ids, and hints for new users. Uses the bundled model, or none.
#include <chrono>
#include <cmath>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/count_of.h"
#include "cli/program_under_test.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "io/temp_dir.h"
#include "support/source_dir.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

const std::string kNeedle = (testing::source_dir() / "models/needle").string();

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// `words` after the command, on the bundled model with a small cache.
Words on_needle(const std::string& command, const Words& words) {
  return joined({command, "-m", kNeedle, "--kv-offload", "off", "--kv-cache-bytes", "64M"}, words);
}

TEST(Conversation, AnswersEachLineOfAPipe) {
  const Outcome outcome =
      run_sluice(Invocation{.words = on_needle("run", {"--chat", "-i", "--temperature", "0", "-n",
                                                       "24", "-v", "--block-size", "16"}),
                            .input = "The secret number of the purple castle is 7391846.\n\n"
                                     "What is the secret number of the purple castle?\n"
                                     "/clear\nhello\n/exit\nnever asked\n"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  // The second question needs the first message.
  const size_t end_of_first = outcome.out.find('\n');
  EXPECT_NE(outcome.out.find("7391846", end_of_first), std::string::npos) << outcome.out;
  EXPECT_EQ(count_of(outcome.err, "first token after"), 3u) << outcome.err;
  EXPECT_NE(outcome.err.find("of them cached"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("(forgotten)"), std::string::npos);
  EXPECT_EQ(outcome.err.find("> "), std::string::npos) << "no prompt: input is no terminal";
}

TEST(Conversation, AFullContextIsSaidAndTheNextTurnGoesOn) {
  const std::string longer(600, 'x');  // more tokens than the context
  const Outcome outcome = run_sluice(
      Invocation{.words = on_needle("run", {"-i", "--temperature", "0", "--max-model-len", "64"}),
                 .input = longer + "\nhello\n"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("/clear starts anew"), std::string::npos) << outcome.err;
  EXPECT_GT(outcome.out.size(), 1u) << "the short message is answered";
}

TEST(Conversation, WithoutATemplateEndsBeforeItBegins) {
  TempDir directory;
  for (const char* name : {"config.json", "tokenizer.json"}) {
    fs::copy_file(fs::path(kNeedle) / name, directory.path() / name);
  }
  const Outcome outcome =
      run_sluice({"run", "-m", directory.path().string(), "--load-format", "dummy", "--kv-offload",
                  "off", "--kv-cache-bytes", "64M", "-i"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("template"), std::string::npos) << outcome.err;
}

// The program on a terminal of its own: reads its output and types input.
class Terminal {
 public:
  explicit Terminal(const Words& words) {
    child_ = forkpty(&fd_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      std::vector<std::string> all = joined({SLUICE_PROGRAM}, words);
      std::vector<char*> arguments;
      for (std::string& word : all) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(fd_);
  }

  void type(const std::string& text) {
    seen_to_ = text_.size();
    ASSERT_EQ(write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  // Reads until `part` appears after the last typed text; false at the end or after some minutes.
  bool shows(const std::string& part) { return shows_with(part, 0); }
  // Reads until `part` appears and more output after it.
  bool shows_more_than(const std::string& part) { return shows_with(part, 1); }

  int exit_code() {
    while (read_more()) {
    }
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  const std::string& text() const { return text_; }

 private:
  bool shows_with(const std::string& part, size_t num_more) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    const auto is_there = [&] {
      const size_t at = text_.find(part, seen_to_);
      return at != std::string::npos && text_.size() >= at + part.size() + num_more;
    };
    while (!is_there()) {
      if (std::chrono::steady_clock::now() > deadline || !read_more()) return false;
    }
    return true;
  }

  bool read_more() {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, 1000) == 0) return true;
    char buffer[4096];
    const ssize_t n = read(fd_, buffer, sizeof buffer);
    if (n <= 0) return false;  // the other side was closed
    text_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int fd_ = -1;
  pid_t child_ = -1;
  std::string text_;
  size_t seen_to_ = 0;
};

TEST(Conversation, OnATerminalNeedsNoOption) {
  Terminal terminal(
      on_needle("run", {"--chat", "--temperature", "0", "-n", "15000", "--ignore-eos"}));
  ASSERT_TRUE(terminal.shows("\n> ")) << terminal.text();
  // Ctrl-C ends a long answer, not the program.
  terminal.type("hello\n");
  ASSERT_TRUE(terminal.shows_more_than("hello\r\n")) << terminal.text();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.shows("(stopped)\r\n> ")) << terminal.text();
  // At the prompt, Ctrl-C discards the typed text.
  terminal.type("half a mess\x03");
  ASSERT_TRUE(terminal.shows("(Ctrl-D or /exit ends)\r\n> ")) << terminal.text();
  terminal.type("/help\n");
  ASSERT_TRUE(terminal.shows("/clear forgets")) << terminal.text();
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0) << terminal.text();
}

// A pipe that is full from the start: the first Ctrl-C interrupts a write that has written nothing,
// and all of the text must follow once the pipe is read.
TEST(Results, SurviveASignalWithinAWrite) {
  const TempDir dir;
  const std::string path = (dir.path() / "pipe").string();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const int read_end = open(path.c_str(), O_RDONLY | O_NONBLOCK);
  const int write_end = open(path.c_str(), O_WRONLY);
  const std::string filling(static_cast<size_t>(fcntl(write_end, F_GETPIPE_SZ)), 'x');
  ASSERT_EQ(write(write_end, filling.data(), filling.size()), std::ssize(filling));
  const Words words = {"tokenize", "-m", kNeedle, "one two three"};
  const auto until_signal = std::chrono::milliseconds(1000);
  std::string text;
  std::thread reader([&] {
    std::this_thread::sleep_for(2 * until_signal);
    fcntl(read_end, F_SETFL, 0);  // reads wait
    close(write_end);
    char bytes[4096];
    for (ssize_t n; (n = read(read_end, bytes, sizeof bytes)) > 0;) {
      text.append(bytes, static_cast<size_t>(n));
    }
    close(read_end);
  });
  const Outcome outcome =
      run_sluice({.words = words, .output_path = path, .interrupt_after = until_signal});
  reader.join();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.interrupted_at, std::chrono::steady_clock::time_point()) << "it ended before";
  EXPECT_TRUE(text == filling + run_sluice(words).out) << text.size() << " bytes";
}

// As behind `| head -1`: the status of tools that SIGPIPE ends, no message, and an end with the
// first result that nobody reads, long before the last one.
TEST(Results, EndTheProgramWhenNobodyReadsThem) {
  const auto unread = [](Words words) {
    return run_sluice({.words = std::move(words), .in_child = [] {
                         alarm(120);
                         int ends[2];
                         if (pipe(ends) != 0) _exit(126);
                         close(ends[0]);
                         dup2(ends[1], STDOUT_FILENO);
                         close(ends[1]);
                       }});
  };
  for (const Words& words : {Words{"tokenize", "-m", kNeedle, "one two three"}, Words{"--help"},
                             on_needle("run", {"--ignore-eos", "-n", "15000", "Once"}),
                             Words{"inspect", "-m", kNeedle}}) {
    const Outcome outcome = unread(words);
    EXPECT_EQ(outcome.exit_code, 141) << words[0] << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "standard output")) << words[0] << outcome.err;
  }
}

// A closed descriptor is never given to a file of the program, and its writes and reads fail as
// such.
TEST(ClosedDescriptors, AreErrorsWhereTheyAreUsed) {
  const Words words = {"tokenize", "-m", kNeedle, "one two three"};
  const auto with_closed = [](Words given, int fd) {
    return run_sluice({.words = std::move(given), .in_child = [fd] {
                         alarm(120);
                         close(fd);
                       }});
  };
  const Outcome no_output = with_closed(words, STDOUT_FILENO);
  EXPECT_EQ(no_output.exit_code, 1);
  EXPECT_TRUE(contains(no_output.err, "standard output cannot be written: Bad file descriptor"))
      << no_output.err;
  const Outcome no_messages = with_closed(words, STDERR_FILENO);
  EXPECT_EQ(no_messages.exit_code, 0);
  EXPECT_EQ(no_messages.out, run_sluice(words).out);
  EXPECT_EQ(with_closed(words, STDIN_FILENO).out, no_messages.out) << "it is not read";
  const Outcome no_input = with_closed({"tokenize", "-m", kNeedle, "-f", "-"}, STDIN_FILENO);
  EXPECT_NE(no_input.exit_code, 0) << no_input.out;
}

TEST(Tokenize, PrintsWhatRunReads) {
  const std::string text = "It was a dark and stormy night";
  const Outcome ids = run_sluice({"tokenize", "-m", kNeedle, text});
  ASSERT_EQ(ids.exit_code, 0) << ids.err;
  const Words greedy = {"--temperature", "0", "-n", "4", "--json"};
  const Outcome from_text = run_sluice(on_needle("run", joined(greedy, {text})));
  const Outcome from_ids = run_sluice(on_needle(
      "run", joined(greedy, {"--tokens", ids.out.substr(0, ids.out.find('\n')), "--tokens", "5"})));
  ASSERT_EQ(from_text.exit_code, 0) << from_text.err;
  ASSERT_EQ(from_ids.exit_code, 0) << from_ids.err;
  const Json expected = Json::parse(from_text.out);
  const Json first = Json::parse(from_ids.out.substr(0, from_ids.out.find('\n')));
  EXPECT_EQ(first.at("prompt_token_ids"), expected.at("prompt_token_ids"));
  EXPECT_EQ(first.at("token_ids"), expected.at("token_ids"));
  EXPECT_EQ(count_of(from_ids.out, "\n"), 2u) << "two prompts";
}

TEST(Tokenize, SpecialTokensTemplatesFilesAndPieces) {
  TempDir directory;
  const std::string file = directory.write("text", "from a file").string();
  const auto tokenize = [](const Words& words, const std::string& input = "") {
    const Outcome outcome =
        run_sluice(Invocation{.words = joined({"tokenize", "-m", kNeedle}, words), .input = input});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(count_of(tokenize({"<|im_start|>user"}), "4094"), 0u) << "plain text";
  EXPECT_EQ(count_of(tokenize({"--special", "<|im_start|>user"}), "4094"), 1u);
  EXPECT_EQ(count_of(tokenize({"--chat", "--system", "be short", "hi"}), "4094"), 3u);
  EXPECT_EQ(tokenize({"-"}, "from a file\n"), tokenize({"from a file"}));
  EXPECT_EQ(tokenize({"first", "-f", file}), tokenize({"first"}) + tokenize({"from a file"}));
  const Json json = Json::parse(tokenize({"--json", "from a file"}));
  std::string text;
  for (const Json& piece : json.at("pieces")) text += piece.get<std::string>();
  EXPECT_EQ(text, "from a file");
  EXPECT_EQ(json.at("num_tokens"), json.at("token_ids").size());
}

TEST(Score, AgreesWithTheLogprobsOfRun) {
  const Outcome run = run_sluice(on_needle(
      "run", {"--json", "--logprobs", "1", "-n", "12", "--seed", "3", "--ignore-eos", "It was a"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json generated = Json::parse(run.out);
  std::vector<int> ids = generated.at("prompt_token_ids").get<std::vector<int>>();
  const size_t num_prompt = ids.size();
  for (const Json& id : generated.at("token_ids")) ids.push_back(id);
  std::string list;
  for (const int id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);

  const Outcome outcome = run_sluice(on_needle("score", {"--json", "--tokens", list}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Json score = Json::parse(outcome.out);
  EXPECT_EQ(score.at("token_ids"), Json(ids));
  EXPECT_TRUE(score.at("logprobs")[0].is_null());
  double sum = 0;
  for (size_t i = 1; i < ids.size(); ++i) {
    const double logprob = score.at("logprobs")[i];
    sum += logprob;
    if (i < num_prompt) continue;
    const double sampled = generated.at("logprobs")[i - num_prompt][0].at("logprob");
    EXPECT_NEAR(logprob, sampled, 1e-6 * (1 - sampled)) << i;  // both round to float once
  }
  EXPECT_NEAR(score.at("sum").get<double>(), sum, 1e-9);
  EXPECT_NEAR(score.at("perplexity").get<double>(),
              std::exp(-sum / static_cast<double>(ids.size() - 1)), 1e-6);
}

TEST(Score, PrintsALineForEachToken) {
  const Outcome one = run_sluice(on_needle("score", {"It was a dark and stormy night"}));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_NE(one.out.find("\" dark\""), std::string::npos) << one.out;
  EXPECT_NE(one.out.find("perplexity"), std::string::npos);
  const Outcome two = run_sluice(on_needle("score", {"It was a dark and stormy night", "a b"}));
  EXPECT_NE(two.out.find("--- 2 of 2 ---"), std::string::npos) << two.out;
  EXPECT_EQ(run_sluice(on_needle("score", {"x"})).exit_code, 2) << "one token";
}

TEST(ChatHint, IsForPeopleWithAPlainPrompt) {
  const Words quick = {"-n", "1", "--temperature", "0"};
  const auto says = [&](const Words& words) {
    const Outcome outcome = run_sluice(on_needle("run", joined(quick, words)));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return count_of(outcome.err, "this model has a chat template; --chat uses it");
  };
  EXPECT_EQ(says({"hello there"}), 1u);
  EXPECT_EQ(says({"hello there", "and another"}), 1u) << "once";
  EXPECT_EQ(says({"--chat", "hello there"}), 0u);
  EXPECT_EQ(says({"--json", "hello there"}), 0u);
  EXPECT_EQ(says({"--tokens", "1,2"}), 0u);
}

struct Refusal {
  Words words;
  int exit_code;
  Words parts;  // of the message
};

void expect_refusals(const std::vector<Refusal>& refusals) {
  for (const Refusal& refusal : refusals) {
    const Outcome outcome = run_sluice(refusal.words);
    EXPECT_EQ(outcome.exit_code, refusal.exit_code) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    for (const std::string& part : refusal.parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos) << part << "\n" << outcome.err;
    }
  }
}

TEST(Newcomer, IsToldWhatAModelIs) {
  TempDir directory;
  const std::string gguf = directory.write("model.Q4.gguf", "GGUF").string();
  directory.write("model.Q8.gguf", "GGUF");
  const std::string shape = (testing::source_dir() / "models/shapes/qwen3-0.6b").string();
  const std::string folder = directory.path().string();
  const Words fetch = {"nor is such a model in the Hugging Face cache",
                       "`hf download Qwen/Qwen3-0.6B`"};
  expect_refusals({
      {{"run", "-m", "Qwen/Qwen3-0.6B", "hi"}, 3, fetch},
      {{"inspect", "Qwen/Qwen3-0.6B"}, 3, fetch},
      {{"tokenize", "-m", "Qwen/Qwen3-0.6B", "hi"}, 3, fetch},
      {{"run", "-m", gguf, "hi"}, 3, {"model.Q4.gguf", "it is cut or damaged, fetch it again"}},
      {{"run", "-m", "no/such/model.gguf", "hi"}, 3, {"cannot be opened", "a GGUF file"}},
      {{"run", "-m", folder, "hi"}, 3, {"2 GGUF files; give one to --model", "model.Q4.gguf"}},
      {{"run", "-m", shape, "hi"}, 3, {"no tokenizer.json", "--load-format dummy"}},
      {{"run", "-m", "./no-such-model", "hi"}, 3, {"check --model"}},
  });
}

TEST(Newcomer, FilesThatCannotBeReadAreUsage) {
  TempDir directory;
  const std::string folder = directory.path().string(), absent = folder + "/absent";
  const std::string out = folder + "/out";
  expect_refusals({
      {on_needle("run", {"-f", absent}), 2, {"--file", absent}},
      {on_needle("run", {"-f", folder}), 2, {"--file", "directory"}},
      {on_needle("trace", {"-f", absent, "-o", out}), 2, {"--file", absent}},
      {on_needle("score", {"-f", absent}), 2, {"--file", absent}},
      {{"tokenize", "-m", kNeedle, "-f", absent}, 2, {"--file", absent}},
      {{"bench", "throughput", kNeedle, "--requests", absent}, 2, {"--requests", absent}},
  });
}

// Runs `command` in a shell where $0 is the program.
Outcome run_by_shell(const std::string& command) {
  return run_sluice(
      Invocation{.words = {"-c", command, SLUICE_PROGRAM, kNeedle}, .program = "/bin/sh"});
}

TEST(StandardInput, ThatIsADirectoryIsAnError) {
  const Outcome outcome = run_by_shell("exec \"$0\" run -m \"$1\" - < /");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("standard input cannot be read: Is a directory"), std::string::npos)
      << outcome.err;
}

TEST(StandardInput, HearsControlC) {
  // A pipe without a writer's bytes: the program waits for the first one.
  TempDir directory;
  Invocation invocation{
      .words = {"-c", "mkfifo \"$2\"; exec 3<>\"$2\"; exec \"$0\" run -m \"$1\" - <&3",
                SLUICE_PROGRAM, kNeedle, (directory.path() / "fifo").string()},
      .program = "/bin/sh"};
  invocation.interrupt_after = std::chrono::milliseconds(300);
  EXPECT_EQ(run_sluice(invocation).exit_code, 130);
}

TEST(StandardInput, ThatUsesUpMemorySaysSo) {
  if (run_by_shell("ulimit -v 200000; exec \"$0\" --version").exit_code != 0) {
    GTEST_SKIP() << "sanitizers take more address space than that";
  }
  const Outcome outcome =
      run_by_shell("ulimit -v 200000; head -c 250000000 /dev/zero | exec \"$0\" run -m \"$1\" -");
  EXPECT_EQ(outcome.exit_code, 4) << outcome.err;
  EXPECT_NE(outcome.err.find("of standard input; give a shorter text"), std::string::npos)
      << outcome.err;
}

TEST(Variables, ThatNothingReadsAreSaid) {
  const Outcome outcome = run_sluice(Invocation{.words = {"tokenize", "-m", kNeedle, "hi"},
                                                .environment = {"SLUICE_KV_OFLOAD=chunked"}});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_NE(outcome.err.find("SLUICE_KV_OFLOAD has no effect"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace sluice::cli
