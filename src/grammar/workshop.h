// GrammarWorkshop: compiles grammars on a thread of its own, and keeps them.
//
// The engine has one. A request's structure is read where it is checked, and compiled while its
// prompt is computed. Equal structures are compiled once, until kMaxCachedBytes of others came
// since. Thread rule: any thread may call it; orders are shared.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"
#include "sluice/error.h"
#include "sluice/structured_output.h"

namespace sluice {

// A grammar that is compiled, or will be. Made by the workshop.
class GrammarOrder {
 public:
  GrammarOrder(std::string rules, std::vector<std::string> ignored)
      : rules_(std::move(rules)), ignored_(std::move(ignored)) {}

  // Whether the compilation has ended, with a grammar or an error.
  bool is_done() const { return state_.load(std::memory_order_acquire) == State::kDone; }
  // Null after an error. REQUIRES: is_done().
  const std::shared_ptr<const Grammar>& grammar() const { return grammar_; }
  // REQUIRES: is_done() without a grammar.
  const Error& error() const { return *error_; }
  // Of a lenient schema: what is not enforced.
  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  friend class GrammarWorkshop;
  enum class State { kRead, kQueued, kDone };

  const std::string rules_;
  const std::vector<std::string> ignored_;
  std::atomic<State> state_ = State::kRead;  // what follows never changes after kDone
  std::shared_ptr<const Grammar> grammar_;
  std::optional<Error> error_;
};

using GrammarOrderPtr = std::shared_ptr<GrammarOrder>;

class GrammarWorkshop {
 public:
  static constexpr size_t kMaxCachedBytes = 256 << 20;   // of all compiled grammars
  static constexpr size_t kMaxGrammarBytes = 256 << 20;  // of one

  // `make_table` is called once, on the workshop's thread, before the first compilation.
  explicit GrammarWorkshop(std::function<TokenTable()> make_table);
  // Waits for the compilation that runs; others are dropped.
  ~GrammarWorkshop();
  GrammarWorkshop(const GrammarWorkshop&) = delete;
  GrammarWorkshop& operator=(const GrammarWorkshop&) = delete;

  // Reads a structure, or finds what was read before. Errors: those of structure_rules.
  GrammarOrderPtr read(const StructuredOutput& structure);
  // Compiles what `read` returned, unless that was asked for before. An order that has no
  // other owner when its turn comes is dropped.
  void compile(const GrammarOrderPtr& order);
  // Returns when some compilation has ended since the last call, or after `limit`.
  void wait(std::chrono::nanoseconds limit);

 private:
  struct Entry {
    std::string key;
    GrammarOrderPtr order;
  };

  void run();
  void compile_one(GrammarOrder& order);
  void drop_old();

  const std::function<TokenTable()> make_table_;
  std::shared_ptr<const Vocabulary> vocabulary_;  // of the thread

  std::mutex mutex_;
  std::condition_variable has_work_;
  std::condition_variable has_ended_;
  std::list<Entry> entries_;  // the newest first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  std::deque<GrammarOrderPtr> queue_;
  int64_t num_ended_ = 0;  // since the last wait
  bool stops_ = false;
  std::thread thread_;  // begins with the first compilation
};

}  // namespace sluice
