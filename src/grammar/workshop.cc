// A queue, one thread, and a list of what was compiled.
#include "grammar/workshop.h"

#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "grammar/structure_rules.h"

namespace sluice {
namespace {

// Structures that were read and not compiled take little; this many are kept at most.
constexpr size_t kMaxEntries = 1024;

// A text with its length before it, so that texts in a row can be cut in one way only.
void add_text(std::string& key, std::string_view text) {
  key += fmt::format("{}:{}", text.size(), text);
}

std::string key_of(const StructuredOutput& structure);

// The places of functions count: errors name them.
std::string key_of(const StructuredCalls& calls) {
  const CallForm& form = calls.form;
  std::string key =
      fmt::format("{} {} {}:", calls.is_required, calls.is_single, calls.functions.size());
  for (const std::string* text :
       {&form.begin, &form.middle, &form.end, &form.between, &form.marker, &form.opening}) {
    add_text(key, *text);
  }
  key += form.parameters ? 'p' : 'j';
  if (const auto& parameters = form.parameters) {
    for (const std::string* text :
         {&parameters->begin, &parameters->middle, &parameters->end, &parameters->mark}) {
      add_text(key, *text);
    }
  }
  for (const CallableFunction& function : calls.functions) {
    key += function.is_lenient ? 'l' : 's';
    for (const std::string* text : {&function.name, &function.parameters, &function.place}) {
      add_text(key, *text);
    }
  }
  return key + (calls.or_else ? key_of(*calls.or_else) : std::string());
}

// Lengths before texts, so that no two structures have one key.
std::string key_of(const StructuredOutput& structure) {
  std::string key = fmt::format("{} {} ", static_cast<int>(structure.kind), structure.is_lenient);
  add_text(key, structure.text);
  for (const std::string& choice : structure.choices) add_text(key, choice);
  return key + (structure.calls ? key_of(*structure.calls) : std::string());
}

}  // namespace

GrammarWorkshop::GrammarWorkshop(std::function<TokenTable()> make_table)
    : make_table_(std::move(make_table)) {}

GrammarWorkshop::~GrammarWorkshop() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  has_work_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Rules are made without the lock: a large schema takes milliseconds.
GrammarOrderPtr GrammarWorkshop::read(const StructuredOutput& structure) {
  std::string key = key_of(structure);
  {
    const std::lock_guard lock(mutex_);
    const auto known = by_key_.find(key);
    if (known != by_key_.end()) {
      entries_.splice(entries_.begin(), entries_, known->second);
      return entries_.front().order;
    }
  }
  StructureRules made = structure_rules(structure);
  auto order = std::make_shared<GrammarOrder>(std::move(made.rules), std::move(made.ignored));
  const std::lock_guard lock(mutex_);
  const auto known = by_key_.find(key);
  if (known != by_key_.end()) return known->second->order;
  entries_.push_front({.key = key, .order = order});
  by_key_.emplace(std::move(key), entries_.begin());
  drop_old();
  return order;
}

void GrammarWorkshop::compile(const GrammarOrderPtr& order) {
  {
    const std::lock_guard lock(mutex_);
    if (order->state_.load(std::memory_order_relaxed) != GrammarOrder::State::kRead) return;
    order->state_.store(GrammarOrder::State::kQueued, std::memory_order_relaxed);
    queue_.push_back(order);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  has_work_.notify_one();
}

// A compilation that ended before the call counts, so that none is missed.
void GrammarWorkshop::wait(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  has_ended_.wait_for(lock, limit, [this] { return num_ended_ > 0; });
  num_ended_ = 0;
}

// The lock is held but for compilations.
void GrammarWorkshop::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, [this] { return stops_ || !queue_.empty(); });
    if (stops_) return;
    const GrammarOrderPtr order = std::move(queue_.front());
    queue_.pop_front();
    // This thread and the list hold it in any case.
    if (order.use_count() <= 2) {
      order->state_.store(GrammarOrder::State::kRead, std::memory_order_relaxed);
      continue;
    }
    lock.unlock();
    compile_one(*order);
    lock.lock();
    order->state_.store(GrammarOrder::State::kDone, std::memory_order_release);
    ++num_ended_;
    drop_old();
    has_ended_.notify_all();
  }
}

// Whatever is thrown is the fault of one request.
// Without the lock: reading rules takes up to some tens of milliseconds, in which requests are read
// and others look whether theirs is done. The vocabulary is made with the first grammar, since most
// servers never get a schema; it takes a tenth of a second.
void GrammarWorkshop::compile_one(GrammarOrder& order) {
  try {
    if (!vocabulary_) vocabulary_ = std::make_shared<const Vocabulary>(make_table_());
    auto grammar = std::make_shared<const Grammar>(order.rules_, vocabulary_);
    if (grammar->num_bytes() > kMaxGrammarBytes) {
      fail(
          ErrorCode::kInvalidArgument,
          "structured output: its grammar takes {} MiB; at most {} are allowed, give a smaller one",
          grammar->num_bytes() >> 20, kMaxGrammarBytes >> 20);
    }
    order.grammar_ = std::move(grammar);
  } catch (const Error& error) {
    order.error_ = error;
  } catch (const std::exception& error) {
    order.error_ = Error(ErrorCode::kInvalidArgument,
                         fmt::format("structured output: {}; give a smaller one", error.what()));
  }
}

// What sequences still use lives on with them.
void GrammarWorkshop::drop_old() {
  size_t num_bytes = 0;
  size_t num_entries = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const GrammarOrder& order = *it->order;
    num_bytes += order.rules_.size() + it->key.size();
    if (order.is_done() && order.grammar_) num_bytes += order.grammar_->num_bytes();
    const bool fits = num_bytes <= kMaxCachedBytes && ++num_entries <= kMaxEntries;
    if (fits || it == entries_.begin()) {
      ++it;
    } else {
      by_key_.erase(it->key);
      it = entries_.erase(it);
    }
  }
}

}  // namespace sluice
