// Scopes: the variables of a running template.
//
// Used by the interpreter. A loop's body, a macro and a captured block have scopes of their own; an
// assignment reaches the innermost one, a lookup all that enclose it in the source. Thread rule:
// one thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/value.h"

namespace sluice::jinja {

class Scopes {
 public:
  Scopes() { stack_.push_back({0, 0, {}}); }

  size_t top() const { return stack_.size() - 1; }
  uint64_t serial_of(size_t scope) const { return stack_[scope].serial; }
  // Whether a scope that was seen earlier is still there.
  bool alive(size_t scope, uint64_t serial) const {
    return scope < stack_.size() && stack_[scope].serial == serial;
  }

  // A scope inside of the top one, or of `parent`.
  void push() { push(top()); }
  void push(size_t parent) { stack_.push_back({parent, ++last_serial_, {}}); }
  void pop() { stack_.pop_back(); }

  // Null if no scope has the variable. The pointer is valid until the next change.
  const Value* find(NameId name) const {
    for (size_t scope = top();; scope = stack_[scope].parent) {
      for (const auto& [id, value] : stack_[scope].variables) {
        if (id == name) return &value;
      }
      if (scope == 0) return nullptr;
    }
  }

  // Assigns in the top scope.
  void set(NameId name, Value value) {
    for (auto& [id, old] : stack_.back().variables) {
      if (id != name) continue;
      old = std::move(value);
      return;
    }
    stack_.back().variables.emplace_back(name, std::move(value));
  }

 private:
  struct Scope {
    size_t parent;
    uint64_t serial;
    std::vector<std::pair<NameId, Value>> variables;
  };
  std::vector<Scope> stack_;
  uint64_t last_serial_ = 0;
};

}  // namespace sluice::jinja
