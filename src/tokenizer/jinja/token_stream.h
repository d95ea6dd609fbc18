// TokenStream: the tokens of a template, read one after the other.
//
// Used by the two parsers. Thread rule: one thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/lexer.h"

namespace sluice::jinja {

class TokenStream {
 public:
  // REQUIRES: the last token is kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  bool is(Token::Kind kind) const { return current().kind == kind; }
  bool is_name(std::string_view name) const { return current().is_name(name); }
  bool is_operator(std::string_view op) const { return current().is_operator(op); }

  // Takes the current token; the end is never passed.
  Token take() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  bool skip_operator(std::string_view op) { return is_operator(op) && (take(), true); }

  // Take a token of this kind or text. Errors: kUnsupported that names what was found.
  Token expect(Token::Kind kind, std::string_view what) {
    if (!is(kind)) unexpected(what);
    return take();
  }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) unexpected(op);
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) unexpected(name);
  }
  [[noreturn]] void unexpected(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace sluice::jinja
