// ExpressionParser: makes the tree of the expressions of a template.
//
// Used by the parser of statements (parser.cc). Thread rule: one thread.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/token_stream.h"

namespace sluice::jinja {

// Chains such as a + b + c + ... make deep trees without nested syntax.
inline constexpr int kMaxTreeDepth = 400;
inline constexpr size_t kMaxNames = 2000;  // of variables; they are looked up one by one

// Source: jinja2's parser.py. Errors of all functions: kUnsupported that names line and construct.
class ExpressionParser {
 public:
  ExpressionParser(TokenStream& tokens, Tree& tree) : tokens_(tokens), tree_(tree) {}

  NodePtr expression();
  // Without "x if y": what follows may be the "if" of a for statement.
  NodePtr plain_expression() { return parse_or(); }
  // An expression, or several with commas between them.
  NodePtr tuple();
  // Names, perhaps in tuples; with `members`, also ns.x.
  NodePtr target(bool members);
  // One or more filters with | between them, applied to a block.
  NodePtr filter_chain();
  // The name of a variable, which is assigned somewhere.
  NameId assigned(const Token& name);
  NameId name_id(std::string_view name);

  static NodePtr make(Node::Kind kind, int line);
  // Adds a child and keeps `depth` true. A null child stands for one that is not given.
  static void adopt(Node& parent, NodePtr child);

  // Refuses calls of names that are no function and that nothing assigns.
  void check_called_names() const;

 private:
  NodePtr parse_or();
  NodePtr parse_and();
  NodePtr parse_not();
  NodePtr parse_compare();
  NodePtr parse_sum();
  NodePtr parse_concat();
  NodePtr parse_product();
  NodePtr parse_power();
  NodePtr parse_unary(bool with_filter);
  NodePtr parse_primary();
  NodePtr parse_literal();
  NodePtr parse_parenthesis();
  NodePtr parse_list();
  NodePtr parse_dict();
  NodePtr parse_postfix(NodePtr node);
  NodePtr parse_filters_and_tests(NodePtr node);
  NodePtr parse_member(NodePtr object);
  NodePtr parse_subscript(NodePtr object);
  NodePtr parse_call(NodePtr callee);
  NodePtr parse_filter(NodePtr input);
  NodePtr parse_test(NodePtr input);
  void parse_arguments(Node& node);
  NodePtr binary(Op op, NodePtr left, NodePtr right, int line);
  bool at_test_argument() const;

  TokenStream& tokens_;
  Tree& tree_;
  int nesting_ = 0;
  std::vector<bool> assigned_;                  // by name: whether anything assigns it
  std::vector<std::pair<NameId, int>> called_;  // with their lines
};

}  // namespace sluice::jinja
