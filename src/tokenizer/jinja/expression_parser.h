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

  // Sets caller, varargs and kwargs of a macro or call block whose body is parsed.
  void find_special_names(Node& macro);
  // Refuses calls of names that are no function and that nothing assigns.
  void check_called_names() const;

 private:
  // The grammar, from what binds least. Each function parses the rule beside it; [x] is x or
  // nothing, {x} is any number of x.
  NodePtr parse_or();                     // and {"or" and}
  NodePtr parse_and();                    // not {"and" not}
  NodePtr parse_not();                    // "not" not, or compare
  NodePtr parse_compare();                // sum {operator sum}; also "in" and "not in"
  NodePtr parse_sum();                    // concat {("+" or "-") concat}
  NodePtr parse_concat();                 // product {"~" product}
  NodePtr parse_product();                // power {("*", "/", "//" or "%") power}
  NodePtr parse_power();                  // unary {"**" unary}, from the left as in jinja2
  NodePtr parse_unary(bool with_filter);  // sign unary, or primary; both with their postfix
  NodePtr parse_primary();                // a name, literal, parenthesis, list or dict
  NodePtr parse_literal();                // a number, or texts one after the other
  NodePtr parse_parenthesis();            // "(" [tuple] ")"
  NodePtr parse_list();                   // "[" expressions with commas between "]"
  NodePtr parse_dict();                   // "{" pairs of expressions with ":" between "}"
  // What may follow a primary. Each takes the node before it and returns the larger one.
  NodePtr parse_postfix(NodePtr node);            // {member, subscript or call}
  NodePtr parse_filters_and_tests(NodePtr node);  // {filter, test or call}
  NodePtr parse_member(NodePtr object);           // "." name or integer
  NodePtr parse_subscript(NodePtr object);        // "[" an expression, or a slice "]"
  NodePtr parse_call(NodePtr callee);             // arguments
  NodePtr parse_filter(NodePtr input);            // "|" name [arguments]
  NodePtr parse_test(NodePtr input);              // "is" ["not"] name [arguments, or one operand]
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
