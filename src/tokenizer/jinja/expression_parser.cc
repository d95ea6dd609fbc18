// Recursive descent, one function for each level of precedence.
#include "tokenizer/jinja/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/printable.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/functions.h"
#include "tokenizer/jinja/methods.h"
#include "tokenizer/jinja/tests.h"

namespace sluice::jinja {
namespace {

using Kind = Node::Kind;

// Whether an expression or statement reads the variable, nested macros included.
bool mentions(const Node& node, std::string_view name) {
  if (node.kind == Kind::kName && node.text == name) return true;
  const auto does = [&](const NodePtr& child) { return child && mentions(*child, name); };
  return std::any_of(node.children.begin(), node.children.end(), does) ||
         std::any_of(node.arguments.begin(), node.arguments.end(),
                     [&](const Argument& argument) { return does(argument.value); });
}

// Counts nested calls of the parser.
class Nesting {
 public:
  Nesting(int& depth, int line) : depth_(depth) {
    if (++depth_ > kMaxDepth) {
      --depth_;
      refuse(line, fmt::format("expressions are nested more than {} deep", kMaxDepth));
    }
  }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int& depth_;
};

}  // namespace

void TokenStream::unexpected(std::string_view wanted) const {
  const std::string found =
      is(Token::Kind::kEnd) ? "the template ends"
      : current().text.empty()
          ? "the tag ends"
          : fmt::format("\"{}\" stands", printable(std::string_view(current().text).substr(0, 40)));
  refuse(line(), fmt::format("{} where {} must stand", found, wanted));
}

NodePtr ExpressionParser::make(Kind kind, int line) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  node->line = line;
  return node;
}

void ExpressionParser::adopt(Node& parent, NodePtr child) {
  if (child) parent.depth = std::max(parent.depth, child->depth + 1);
  if (parent.depth > kMaxTreeDepth) {
    refuse(parent.line, fmt::format("an expression has more than {} levels", kMaxTreeDepth));
  }
  parent.children.push_back(std::move(child));
}

NameId ExpressionParser::name_id(std::string_view name) {
  const auto at = std::find(tree_.names.begin(), tree_.names.end(), name);
  const auto id = static_cast<NameId>(at - tree_.names.begin());
  if (at != tree_.names.end()) return id;
  if (tree_.names.size() == kMaxNames) {
    refuse(tokens_.line(), fmt::format("there are more than {} variables", kMaxNames));
  }
  tree_.names.emplace_back(name);
  assigned_.push_back(false);
  return id;
}

NameId ExpressionParser::assigned(const Token& name) {
  constexpr std::array<std::string_view, 9> kReserved = {"true", "false", "none", "True", "False",
                                                         "None", "and",   "or",   "not"};
  if (std::find(kReserved.begin(), kReserved.end(), name.text) != kReserved.end()) {
    refuse(name.line, fmt::format("\"{}\" cannot be assigned", name.text));
  }
  const NameId id = name_id(name.text);
  assigned_[static_cast<size_t>(id)] = true;
  return id;
}

// Source: jinja2's CodeGenerator.macro_body, where a parameter of such a name is an ordinary one.
void ExpressionParser::find_special_names(Node& macro) {
  const auto find = [&](std::string_view name) -> NameId {
    const bool is_parameter =
        std::any_of(macro.arguments.begin(), macro.arguments.end(),
                    [&](const Argument& argument) { return argument.name == name; });
    return !is_parameter && mentions(*macro.children[0], name)
               ? assigned({.text = std::string(name)})
               : -1;
  };
  macro.caller = find("caller");
  macro.varargs = find("varargs");
  macro.kwargs = find("kwargs");
}

void ExpressionParser::check_called_names() const {
  for (const auto& [id, line] : called_) {
    const std::string& name = tree_.names[static_cast<size_t>(id)];
    if (is_function(name) || name == "loop" || assigned_[static_cast<size_t>(id)]) continue;
    refuse(line, fmt::format("there is no function {}()", printable(name)));
  }
}

NodePtr ExpressionParser::binary(Op op, NodePtr left, NodePtr right, int line) {
  NodePtr node = make(Kind::kBinary, line);
  node->op = op;
  adopt(*node, std::move(left));
  adopt(*node, std::move(right));
  return node;
}

// expression = or ["if" or ["else" expression]]
NodePtr ExpressionParser::expression() {
  const Nesting nesting(nesting_, tokens_.line());
  NodePtr node = parse_or();
  while (tokens_.is_name("if")) {
    NodePtr condition = make(Kind::kCondition, tokens_.take().line);
    adopt(*condition, std::move(node));
    adopt(*condition, parse_or());
    if (tokens_.skip_name("else")) adopt(*condition, expression());
    node = std::move(condition);
  }
  return node;
}

NodePtr ExpressionParser::tuple() {
  NodePtr first = expression();
  if (!tokens_.is_operator(",")) return first;
  NodePtr node = make(Kind::kTuple, tokens_.line());
  adopt(*node, std::move(first));
  while (tokens_.skip_operator(",")) {
    const bool ends = tokens_.is(Token::Kind::kVariableEnd) || tokens_.is(Token::Kind::kBlockEnd) ||
                      tokens_.is_operator(")");
    if (ends) break;
    adopt(*node, expression());
  }
  return node;
}

NodePtr ExpressionParser::target(bool members) {
  const Nesting nesting(nesting_, tokens_.line());
  const auto one = [&]() -> NodePtr {
    if (tokens_.skip_operator("(")) {
      NodePtr inner = target(false);
      tokens_.expect_operator(")");
      return inner;
    }
    const Token token = tokens_.expect(Token::Kind::kName, "a name");
    NodePtr name = make(Kind::kName, token.line);
    name->text = token.text;
    if (members && tokens_.skip_operator(".")) {
      name->name = name_id(token.text);
      NodePtr member = make(Kind::kMember, token.line);
      member->text = tokens_.expect(Token::Kind::kName, "a name").text;
      adopt(*member, std::move(name));
      return member;
    }
    name->name = assigned(token);
    return name;
  };
  NodePtr first = one();
  if (!tokens_.is_operator(",")) return first;
  NodePtr node = make(Kind::kTuple, first->line);
  adopt(*node, std::move(first));
  while (tokens_.skip_operator(",")) {
    if (!tokens_.is(Token::Kind::kName) && !tokens_.is_operator("(")) break;
    adopt(*node, one());
  }
  return node;
}

// or = and {"or" and}
NodePtr ExpressionParser::parse_or() {
  NodePtr left = parse_and();
  while (tokens_.is_name("or")) {
    const int line = tokens_.take().line;
    left = binary(Op::kOr, std::move(left), parse_and(), line);
  }
  return left;
}

// and = not {"and" not}
NodePtr ExpressionParser::parse_and() {
  NodePtr left = parse_not();
  while (tokens_.is_name("and")) {
    const int line = tokens_.take().line;
    left = binary(Op::kAnd, std::move(left), parse_not(), line);
  }
  return left;
}

// not = "not" not | compare
NodePtr ExpressionParser::parse_not() {
  if (!tokens_.is_name("not")) return parse_compare();
  const Nesting nesting(nesting_, tokens_.line());
  NodePtr node = make(Kind::kUnary, tokens_.take().line);
  node->op = Op::kNot;
  adopt(*node, parse_not());
  return node;
}

// compare = sum {("==" | "!=" | "<" | "<=" | ">" | ">=" | ["not"] "in") sum}, a chain as in Python
NodePtr ExpressionParser::parse_compare() {
  constexpr std::array<std::pair<std::string_view, Op>, 6> kOps = {{{"==", Op::kEq},
                                                                    {"!=", Op::kNe},
                                                                    {"<", Op::kLt},
                                                                    {"<=", Op::kLe},
                                                                    {">", Op::kGt},
                                                                    {">=", Op::kGe}}};
  NodePtr left = parse_sum();
  NodePtr node;
  for (;;) {
    const auto op = std::find_if(kOps.begin(), kOps.end(), [this](const auto& candidate) {
      return tokens_.is_operator(candidate.first);
    });
    const bool not_in = tokens_.is_name("not") && tokens_.next().is_name("in");
    if (op == kOps.end() && !not_in && !tokens_.is_name("in")) break;
    if (!node) {
      node = make(Kind::kCompare, tokens_.line());
      adopt(*node, std::move(left));
    }
    if (not_in) tokens_.take();
    tokens_.take();
    node->ops.push_back(op != kOps.end() ? op->second : not_in ? Op::kNotIn : Op::kIn);
    adopt(*node, parse_sum());
  }
  return node ? std::move(node) : std::move(left);
}

// sum = concat {("+" | "-") concat}
NodePtr ExpressionParser::parse_sum() {
  NodePtr left = parse_concat();
  while (tokens_.is_operator("+") || tokens_.is_operator("-")) {
    const Token op = tokens_.take();
    left = binary(op.text == "+" ? Op::kAdd : Op::kSub, std::move(left), parse_concat(), op.line);
  }
  return left;
}

// concat = product {"~" product}
NodePtr ExpressionParser::parse_concat() {
  NodePtr first = parse_product();
  if (!tokens_.is_operator("~")) return first;
  NodePtr node = make(Kind::kConcat, tokens_.line());
  adopt(*node, std::move(first));
  while (tokens_.skip_operator("~")) adopt(*node, parse_product());
  return node;
}

// product = power {("*" | "/" | "//" | "%") power}
NodePtr ExpressionParser::parse_product() {
  constexpr std::array<std::pair<std::string_view, Op>, 4> kOps = {
      {{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}}};
  NodePtr left = parse_power();
  for (;;) {
    const auto op = std::find_if(kOps.begin(), kOps.end(), [this](const auto& candidate) {
      return tokens_.is_operator(candidate.first);
    });
    if (op == kOps.end()) return left;
    const int line = tokens_.take().line;
    left = binary(op->second, std::move(left), parse_power(), line);
  }
}

// power = unary {"**" unary}
NodePtr ExpressionParser::parse_power() {
  NodePtr left = parse_unary(true);
  while (tokens_.is_operator("**")) {
    const int line = tokens_.take().line;
    left = binary(Op::kPow, std::move(left), parse_unary(true), line);
  }
  return left;
}

// unary = ("-" | "+") unary | primary with what follows it
NodePtr ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(nesting_, tokens_.line());
  NodePtr node;
  if (tokens_.is_operator("-") || tokens_.is_operator("+")) {
    const Token sign = tokens_.take();
    node = make(Kind::kUnary, sign.line);
    node->op = sign.text == "-" ? Op::kNeg : Op::kPos;
    adopt(*node, parse_unary(false));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

// primary = name | literal | "(" tuple ")" | list | dict
NodePtr ExpressionParser::parse_primary() {
  if (tokens_.is_operator("(")) return parse_parenthesis();
  if (tokens_.is_operator("[")) return parse_list();
  if (tokens_.is_operator("{")) return parse_dict();
  if (!tokens_.is(Token::Kind::kName)) return parse_literal();
  const Token token = tokens_.take();
  NodePtr node = make(Kind::kConst, token.line);
  if (token.text == "true" || token.text == "True") {
    node->constant = true;
  } else if (token.text == "false" || token.text == "False") {
    node->constant = false;
  } else if (token.text == "none" || token.text == "None") {
    node->constant = None{};
  } else {
    node->kind = Kind::kName;
    node->text = token.text;
    node->name = name_id(token.text);
  }
  return node;
}

NodePtr ExpressionParser::parse_literal() {
  const bool known = tokens_.is(Token::Kind::kString) || tokens_.is(Token::Kind::kInteger) ||
                     tokens_.is(Token::Kind::kFloat);
  if (!known) tokens_.unexpected("an expression");
  const Token token = tokens_.take();
  NodePtr node = make(Kind::kConst, token.line);
  const char* end = token.text.data() + token.text.size();
  if (token.kind == Token::Kind::kString) {
    std::string text = token.text;
    while (tokens_.is(Token::Kind::kString)) text += tokens_.take().text;
    node->constant = MarkedText(std::move(text), false);
  } else if (token.kind == Token::Kind::kInteger) {
    int64_t number = 0;
    if (std::from_chars(token.text.data(), end, number).ec != std::errc{}) {
      refuse(token.line, fmt::format("the integer {} has more than 64 bits", token.text));
    }
    node->constant = number;
  } else {
    double number = 0;
    if (std::from_chars(token.text.data(), end, number).ec != std::errc{}) {
      refuse(token.line, fmt::format("the number {} is out of range", token.text));
    }
    node->constant = number;
  }
  return node;
}

NodePtr ExpressionParser::parse_parenthesis() {
  const int line = tokens_.take().line;
  if (tokens_.skip_operator(")")) return make(Kind::kTuple, line);
  NodePtr node = tuple();
  tokens_.expect_operator(")");
  return node;
}

NodePtr ExpressionParser::parse_list() {
  NodePtr node = make(Kind::kList, tokens_.take().line);
  while (!tokens_.is_operator("]")) {
    if (!node->children.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("]")) break;
    adopt(*node, expression());
  }
  tokens_.expect_operator("]");
  return node;
}

NodePtr ExpressionParser::parse_dict() {
  NodePtr node = make(Kind::kDict, tokens_.take().line);
  while (!tokens_.is_operator("}")) {
    if (!node->children.empty()) tokens_.expect_operator(",");
    if (tokens_.is_operator("}")) break;
    adopt(*node, expression());
    tokens_.expect_operator(":");
    adopt(*node, expression());
  }
  tokens_.expect_operator("}");
  return node;
}

}  // namespace sluice::jinja
