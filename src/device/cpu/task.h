// Task: a move-only callable stored inside a queue node of a CPU stream.
//
// Made by src/ops/cpu from a lambda that captures its POD Args by value; run by the stream's
// worker, once or, in a graph, at every launch. std::function would need a copyable target and
// would allocate for every op of a decode step.
// Thread rule: made on the host, published to the worker, run there; a task outside of graphs is
// destroyed there as well.
#pragma once

#include <concepts>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace sluice {

class ThreadTeam;

// A callable `void(ThreadTeam&)` of at most kInlineBytes.
//
// Cost: that of constructing and moving the callable; it never allocates. A callable that is too
// large does not compile: capture a pointer to memory that lives until the op has run.
// Capture values, not std::shared_ptr: its reference count would order the streams that share it,
// and ThreadSanitizer would not report a missing wait between them.
class Task {
 public:
  static constexpr size_t kInlineBytes = 352;

  Task() = default;

  template <typename F>
  requires(!std::same_as<std::remove_cvref_t<F>, Task> &&
           std::invocable<std::remove_cvref_t<F>&, ThreadTeam&>)
      Task(F&& callable) {  // implicit, so that submit() takes a lambda
    using Callable = std::remove_cvref_t<F>;
    static_assert(sizeof(Callable) <= kInlineBytes, "capture less, or a pointer to it");
    static_assert(alignof(Callable) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Callable>);
    new (storage_) Callable(std::forward<F>(callable));
    ops_ = &kOpsOf<Callable>;
  }

  Task(Task&& other) noexcept { take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      take(other);
    }
    return *this;
  }
  ~Task() { reset(); }

  // Destroys the callable and its captured values.
  void reset() noexcept {
    if (ops_ != nullptr) ops_->destroy(storage_);
    ops_ = nullptr;
  }

  explicit operator bool() const { return ops_ != nullptr; }

  // REQUIRES: not empty.
  void operator()(ThreadTeam& team) { ops_->invoke(storage_, team); }

 private:
  struct Ops {
    void (*invoke)(void* callable, ThreadTeam& team);
    void (*move)(void* from, void* to) noexcept;  // and destroys `from`
    void (*destroy)(void* callable) noexcept;
  };

  // The three operations of one callable type; Task stores a pointer to them, as a vtable would.
  template <typename Callable>
  static constexpr Ops kOpsOf{
      [](void* callable, ThreadTeam& team) { (*static_cast<Callable*>(callable))(team); },
      [](void* from, void* to) noexcept {
        new (to) Callable(std::move(*static_cast<Callable*>(from)));
        static_cast<Callable*>(from)->~Callable();
      },
      [](void* callable) noexcept { static_cast<Callable*>(callable)->~Callable(); }};

  void take(Task& other) noexcept {
    if (other.ops_ != nullptr) other.ops_->move(other.storage_, storage_);
    ops_ = std::exchange(other.ops_, nullptr);
  }

  const Ops* ops_ = nullptr;
  alignas(std::max_align_t) std::byte storage_[kInlineBytes];
};

}  // namespace sluice
