// What follows a value: members, items, calls, filters and tests.
#include "core/printable.h"
#include "tokenizer/jinja/expression_parser.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/tests.h"

namespace sluice::jinja {

using Kind = Node::Kind;

NodePtr ExpressionParser::parse_postfix(NodePtr node) {
  for (;;) {
    if (tokens_.is_operator(".")) {
      node = parse_member(std::move(node));
    } else if (tokens_.is_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (tokens_.is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::parse_filters_and_tests(NodePtr node) {
  for (;;) {
    if (tokens_.is_operator("|")) {
      tokens_.take();
      node = parse_filter(std::move(node));
    } else if (tokens_.is_name("is")) {
      node = parse_test(std::move(node));
    } else if (tokens_.is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::parse_member(NodePtr object) {
  const int line = tokens_.take().line;
  if (tokens_.is(Token::Kind::kInteger)) {
    NodePtr item = make(Kind::kItem, line);
    adopt(*item, std::move(object));
    adopt(*item, parse_literal());
    return item;
  }
  NodePtr member = make(Kind::kMember, line);
  member->text = tokens_.expect(Token::Kind::kName, "a name").text;
  if (object->kind == Kind::kName && object->text == "loop" && !is_loop_member(member->text)) {
    refuse(line, fmt::format("loop.{} is not supported", printable(member->text)));
  }
  adopt(*member, std::move(object));
  return member;
}

NodePtr ExpressionParser::parse_subscript(NodePtr object) {
  NodePtr node = make(Kind::kItem, tokens_.take().line);
  adopt(*node, std::move(object));
  const auto ends = [this] { return tokens_.is_operator(":") || tokens_.is_operator("]"); };
  adopt(*node, ends() ? nullptr : expression());
  if (tokens_.is_operator(":")) {
    node->kind = Kind::kSlice;
    while (node->children.size() < 4) {
      const bool given = tokens_.skip_operator(":") && !ends();
      adopt(*node, given ? expression() : nullptr);
    }
  } else if (!node->children[1]) {
    tokens_.unexpected("an index");
  }
  tokens_.expect_operator("]");
  return node;
}

void ExpressionParser::parse_arguments(Node& node) {
  bool has_star = false;
  tokens_.expect_operator("(");
  while (!tokens_.is_operator(")")) {
    if (!node.arguments.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator(")")) break;
    const std::string last = node.arguments.empty() ? "" : node.arguments.back().name;
    has_star = has_star || last == "*";
    Argument argument;
    if (tokens_.is_operator("*") || tokens_.is_operator("**")) {
      argument.name = tokens_.take().text;
      if (has_star && argument.name == "*")
        refuse(tokens_.line(), "a call has two arguments with *");
    } else if (tokens_.is(Token::Kind::kName) && tokens_.next().is_operator("=")) {
      argument.name = tokens_.take().text;
      tokens_.take();
    } else if (!last.empty()) {
      refuse(tokens_.line(), "a positional argument stands after one with a name, or after *");
    }
    if (last == "**") refuse(tokens_.line(), "an argument stands after one with **");
    argument.value = expression();
    node.depth = std::max(node.depth, argument.value->depth + 1);
    node.arguments.push_back(std::move(argument));
  }
  tokens_.expect_operator(")");
}

NodePtr ExpressionParser::parse_call(NodePtr callee) {
  NodePtr node = make(Kind::kCall, tokens_.line());
  if (callee->kind == Kind::kName) called_.emplace_back(callee->name, callee->line);
  if (callee->kind == Kind::kMember && !is_method(callee->text)) {
    refuse(node->line, fmt::format("there is no method {}()", printable(callee->text)));
  }
  adopt(*node, std::move(callee));
  parse_arguments(*node);
  return node;
}

NodePtr ExpressionParser::parse_filter(NodePtr input) {
  const Token name = tokens_.expect(Token::Kind::kName, "the name of a filter");
  NodePtr node = make(Kind::kFilter, name.line);
  node->filter = find_filter(name.text);
  if (!node->filter) refuse(name.line, fmt::format("there is no filter {}", printable(name.text)));
  adopt(*node, std::move(input));
  if (tokens_.is_operator("(")) parse_arguments(*node);
  return node;
}

NodePtr ExpressionParser::filter_chain() {
  NodePtr node = parse_filter(nullptr);
  while (tokens_.skip_operator("|")) node = parse_filter(std::move(node));
  return node;
}

// Whether a test's one argument follows without parentheses: x is equalto 1.
bool ExpressionParser::at_test_argument() const {
  const Token& token = tokens_.current();
  if (token.kind == Token::Kind::kName) {
    return !token.is_name("else") && !token.is_name("or") && !token.is_name("and");
  }
  return token.kind == Token::Kind::kString || token.kind == Token::Kind::kInteger ||
         token.kind == Token::Kind::kFloat || token.is_operator("[") || token.is_operator("{");
}

NodePtr ExpressionParser::parse_test(NodePtr input) {
  tokens_.take();
  const bool negated = tokens_.skip_name("not");
  const Token name = tokens_.expect(Token::Kind::kName, "the name of a test");
  NodePtr node = make(Kind::kTest, name.line);
  node->negated = negated;
  node->test = find_test(name.text);
  if (!node->test) refuse(name.line, fmt::format("there is no test {}", printable(name.text)));
  adopt(*node, std::move(input));
  if (tokens_.is_operator("(")) {
    parse_arguments(*node);
  } else if (at_test_argument()) {
    if (tokens_.is_name("is"))
      refuse(tokens_.line(), "tests cannot follow each other; use \"and\"");
    // jinja2 takes a following "if" or "in" as a variable, and then fails at what follows it.
    Argument argument{{}, parse_postfix(parse_primary())};
    node->depth = std::max(node->depth, argument.value->depth + 1);
    node->arguments.push_back(std::move(argument));
  }
  return node;
}

}  // namespace sluice::jinja
