// Statements. Source: jinja2's parser.py, and transformers' extension for generation blocks.
#include "tokenizer/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "core/printable.h"
#include "tokenizer/jinja/expression_parser.h"

namespace sluice::jinja {
namespace {

using Kind = Node::Kind;
using TokenKind = Token::Kind;

class Parser {
 public:
  Parser(TokenStream& tokens, Tree& tree) : tokens_(tokens), expressions_(tokens, tree) {}

  NodePtr run() {
    NodePtr root = body({}, 1);
    expressions_.check_called_names();
    return root;
  }

 private:
  static NodePtr make(Kind kind, int line) { return ExpressionParser::make(kind, line); }
  static void adopt(Node& parent, NodePtr child) {
    ExpressionParser::adopt(parent, std::move(child));
  }
  void end_tag() { tokens_.expect(TokenKind::kBlockEnd, "%}"); }

  bool at_any(std::initializer_list<std::string_view> names) const {
    return std::any_of(names.begin(), names.end(),
                       [this](std::string_view name) { return tokens_.is_name(name); });
  }

  // Statements up to a tag that begins with one of `ends`, which becomes the current token; up to
  // the end of the template if there are none. `opened` is the line of the statement.
  NodePtr body(std::initializer_list<std::string_view> ends, int opened) {
    NodePtr node = make(Kind::kBody, tokens_.line());
    if (++nesting_ > kMaxDepth) refuse(opened, "statements are nested too deep");
    for (;;) {
      if (tokens_.is(TokenKind::kEnd)) {
        if (ends.size() == 0) break;
        refuse(opened, fmt::format("the block that begins here has no {}", *(ends.end() - 1)));
      }
      const Token token = tokens_.take();
      if (token.kind == TokenKind::kData) {
        NodePtr text = make(Kind::kText, token.line);
        text->text = token.text;
        adopt(*node, std::move(text));
      } else if (token.kind == TokenKind::kVariableBegin) {
        NodePtr output = make(Kind::kOutput, token.line);
        adopt(*output, expressions_.tuple());
        tokens_.expect(TokenKind::kVariableEnd, "}}");
        adopt(*node, std::move(output));
      } else if (at_any(ends)) {
        break;
      } else {
        adopt(*node, statement());
      }
    }
    --nesting_;
    return node;
  }

  NodePtr statement() {
    struct Statement {
      std::string_view name;
      NodePtr (Parser::*parse)(int line);
    };
    constexpr Statement kStatements[] = {
        {"if", &Parser::if_statement},     {"for", &Parser::for_statement},
        {"set", &Parser::set_statement},   {"with", &Parser::with_statement},
        {"macro", &Parser::macro},         {"call", &Parser::call_block},
        {"filter", &Parser::filter_block}, {"generation", &Parser::generation}};
    const Token name = tokens_.expect(TokenKind::kName, "a statement");
    for (const auto& [known, parse] : kStatements) {
      if (name.text == known) return (this->*parse)(name.line);
    }
    if (name.text == "break" || name.text == "continue") {
      if (num_loops_ == 0) refuse(name.line, fmt::format("{} stands outside of a loop", name.text));
      end_tag();
      return make(name.text == "break" ? Kind::kBreak : Kind::kContinue, name.line);
    }
    refuse(name.line,
           fmt::format("the statement \"{}\" is not supported here", printable(name.text)));
  }

  // Of each statement below the name has been taken, and `line` is that of the name. The order of
  // the children is that of ast.h.
  NodePtr if_statement(int line) {
    NodePtr node = make(Kind::kIf, line);
    do {
      tokens_.skip_name("elif");
      adopt(*node, expressions_.plain_expression());
      end_tag();
      adopt(*node, body({"elif", "else", "endif"}, line));
    } while (tokens_.is_name("elif"));
    if (tokens_.skip_name("else")) {
      end_tag();
      adopt(*node, body({"endif"}, line));
    }
    tokens_.expect_name("endif");
    end_tag();
    return node;
  }

  NodePtr for_statement(int line) {
    NodePtr node = make(Kind::kFor, line);
    adopt(*node, expressions_.target(false));
    tokens_.expect_name("in");
    adopt(*node, expressions_.plain_expression());
    adopt(*node, tokens_.skip_name("if") ? expressions_.expression() : nullptr);
    node->recursive = tokens_.skip_name("recursive");
    end_tag();
    ++num_loops_;
    adopt(*node, body({"else", "endfor"}, line));
    --num_loops_;
    NodePtr otherwise;
    if (tokens_.skip_name("else")) {
      end_tag();
      otherwise = body({"endfor"}, line);
    }
    adopt(*node, std::move(otherwise));
    tokens_.expect_name("endfor");
    end_tag();
    return node;
  }

  // {% set x = ... %}, or a block whose output is the value.
  NodePtr set_statement(int line) {
    NodePtr target = expressions_.target(true);
    if (tokens_.skip_operator("=")) {
      NodePtr node = make(Kind::kSet, line);
      adopt(*node, std::move(target));
      adopt(*node, expressions_.tuple());
      end_tag();
      return node;
    }
    if (target->kind == Kind::kTuple) refuse(line, "a set block has one target");
    NodePtr node = make(Kind::kSetBlock, line);
    NodePtr filter = tokens_.skip_operator("|") ? expressions_.filter_chain() : nullptr;
    end_tag();
    adopt(*node, std::move(target));
    adopt(*node, closed_body("endset", line));
    adopt(*node, std::move(filter));
    return node;
  }

  // {% with a = 1, b = 2 %}. break and continue leave it.
  NodePtr with_statement(int line) {
    NodePtr node = make(Kind::kWith, line);
    while (!tokens_.is(TokenKind::kBlockEnd)) {
      if (!node->children.empty()) tokens_.expect_operator(",");
      adopt(*node, expressions_.target(false));
      tokens_.expect_operator("=");
      adopt(*node, expressions_.expression());
    }
    end_tag();
    adopt(*node, body({"endwith"}, line));
    tokens_.expect_name("endwith");
    end_tag();
    return node;
  }

  // A body up to its end tag, which is taken. break and continue do not leave it.
  NodePtr closed_body(std::string_view end, int line) {
    const int loops = std::exchange(num_loops_, 0);
    NodePtr node = body({end}, line);
    num_loops_ = loops;
    tokens_.expect_name(end);
    end_tag();
    return node;
  }

  NodePtr macro(int line) {
    NodePtr node = make(Kind::kMacro, line);
    const Token name = tokens_.expect(TokenKind::kName, "the name of the macro");
    node->text = name.text;
    node->name = expressions_.assigned(name);
    parameters(*node);
    end_tag();
    adopt(*node, closed_body("endmacro", line));
    expressions_.find_special_names(*node);
    return node;
  }

  // {% call(x) m(1) %}: calls a macro, whose caller(2) writes this block.
  NodePtr call_block(int line) {
    NodePtr node = make(Kind::kCallBlock, line);
    node->text = "caller";
    if (tokens_.is_operator("(")) parameters(*node);
    NodePtr call = expressions_.expression();
    if (call->kind != Kind::kCall || call->children[0]->kind != Kind::kName) {
      refuse(line, "a call block must call a macro by its name");
    }
    end_tag();
    adopt(*node, closed_body("endcall", line));
    adopt(*node, std::move(call));
    expressions_.find_special_names(*node);
    return node;
  }

  // Parameters with defaults stand after those without, as in Python.
  void parameters(Node& macro) {
    tokens_.expect_operator("(");
    while (!tokens_.is_operator(")")) {
      if (!macro.arguments.empty()) tokens_.expect_operator(",");
      const Token parameter = tokens_.expect(TokenKind::kName, "a parameter");
      macro.parameters.push_back(expressions_.assigned(parameter));
      NodePtr value = tokens_.skip_operator("=") ? expressions_.expression() : nullptr;
      if (!value && !macro.arguments.empty() && macro.arguments.back().value) {
        refuse(macro.line, "a parameter without a default stands after one with a default");
      }
      if (value) macro.depth = std::max(macro.depth, value->depth + 1);
      macro.arguments.push_back({parameter.text, std::move(value)});
    }
    tokens_.expect_operator(")");
  }

  NodePtr filter_block(int line) {
    NodePtr node = make(Kind::kFilterBlock, line);
    adopt(*node, expressions_.filter_chain());
    end_tag();
    adopt(*node, closed_body("endfilter", line));
    return node;
  }

  // Marks what the model wrote, for training; here it is only a scope.
  NodePtr generation(int line) {
    NodePtr node = make(Kind::kScope, line);
    end_tag();
    adopt(*node, closed_body("endgeneration", line));
    return node;
  }

  TokenStream& tokens_;
  ExpressionParser expressions_;
  int nesting_ = 0;
  int num_loops_ = 0;  // around the current statement, inside of its macro or block
};

}  // namespace

Tree parse(std::string_view source) {
  TokenStream tokens(lex(source));
  Tree tree;
  tree.root = Parser(tokens, tree).run();
  return tree;
}

}  // namespace sluice::jinja
