// The rules of the Jinja interpreter that Python does not have: marks of message text, limits, and
// errors that name the line.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/printable.h"
#include "io/expect_error.h"
#include "io/json_type.h"
#include "tokenizer/jinja/marked_text.h"
#include "tokenizer/jinja/template.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
using jinja::MarkedText;

std::vector<TextSegment> render(const std::string& source, const Json& given = Json::object()) {
  const Json settings = {{"bos_token", "<s>"}};
  return jinja::Template(source).render({given, settings});
}

// The segments, those with text of messages in brackets.
std::string marked(const std::string& source, const Json& given) {
  std::string text;
  for (const TextSegment& segment : render(source, given)) {
    text += segment.parse_special ? segment.text : "[" + segment.text + "]";
  }
  return text;
}

TEST(MarkedText, KeepsMarksThroughAppendAndSlice) {
  MarkedText text("ab", false);
  text.append("", true);
  text.append("CD", true);
  text.append("EF", true);
  text.append("gh", false);
  // Against one flag for each byte.
  const std::string flags = "00111100";
  for (size_t begin = 0; begin <= text.size(); ++begin) {
    for (size_t end = begin; end <= text.size(); ++end) {
      std::string got;
      size_t num_runs = 0;
      const MarkedText part = text.slice(begin, end);
      part.for_each_run(0, part.size(), [&](std::string_view bytes, bool given) {
        got.append(bytes.size(), given ? '1' : '0');
        ++num_runs;
      });
      EXPECT_EQ(got, flags.substr(begin, end - begin));
      EXPECT_LE(num_runs, 3u);
      EXPECT_EQ(part.has_given(), got.find('1') != got.npos);
    }
  }
}

TEST(Jinja, MarksFollowTextThroughEveryOperation) {
  const Json given = {{"m", "A<x>b"},
                      {"sp", "  q "},
                      {"l", {"p", 5, nullptr, true, 1.5}},
                      {"d", {{"key", "v\n"}}},
                      {"f", "<{:3}"}};
  const std::pair<const char*, const char*> cases[] = {
      {"<{{ m }}>", "<[A<x>b]>"},
      {"{{ '<' + m + '>' }}", "<[A<x>b]>"},
      {"{{ '<' ~ m ~ 1 ~ '>' }}", "<[A<x>b]1>"},
      {"{{ ('<' + m + '>')[1:3] }}{{ ('<' + m)[0] }}{{ ('<' + m)[::-1] }}", "[A<]<[b>x<A]<"},
      {"{{ (' ' + sp + ' ')|trim }}{{ sp.strip() }}{{ ('y' + sp).rstrip() }}", "[qq]y[  q]"},
      {"{{ m|replace('<x>', '|') }}{{ '<x>'|replace('x', m) }}", "[A]|[b]<[A<x>b]>"},
      {"{{ m.split('<')|join('/') }}{{ ('a,' ~ m).split(',')[1] }}", "[A]/[x>bA<x>b]"},
      {"{{ m|upper }}{{ ('a' + m)|title }}{{ m|lower|capitalize }}", "[A<X>B]A[a<X>bA<x>b]"},
      {"{{ [m, 'c']|join('-') }}{{ m|list|last }}{{ m|reverse }}", "[A<x>b]-c[bb>x<A]"},
      {"{{ m|first }}{% for c in m %}{{ c }};{% endfor %}", "[AA];[<];[x];[>];[b];"},
      {"{{ d|tojson }}{{ {'k': m}|tojson }}", R"([{"key": "v\n"}]{"k": ["A<x>b"]})"},
      {"{{ l }}{{ ['s', m] }}", "[['p', 5, None, True, 1.5]]['s', ['A<x>b']]"},
      {"{{ l[1] }}|{{ l[1] + 1 }}|{{ l[2] }}{{ l[3] }}{{ l[4] }}", "[5]|6|[NoneTrue1.5]"},
      {"{% for k, v in d.items() %}{{ k }}={{ v|trim }}{% endfor %}", "[key]=[v]"},
      {"{% for k in d %}{{ k }}{% endfor %}{{ d.keys()|list|first }}", "[keykey]"},
      {"{% set b %}<{{ m }}>{% endset %}{{ b|upper }}", "<[A<X>B]>"},
      {"{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(m)[:3] }}", "<[A<]"},
      {"{% filter replace('b', 'c') %}{{ m }}b{% endfilter %}", "[A<x>]cc"},
      {"{{ m|indent(1, true) }}{{ m|string }}{{ m|safe }}{{ m|default('z') }}",
       " [A<x>bA<x>bA<x>bA<x>b]"},
      {"{% set ns = namespace(t='') %}{% set ns.t = ns.t + m %}{{ ns.t }}", "[A<x>b]"},
      {"{{ bos_token }}{{ m if m }}", "<s>[A<x>b]"},
      {"{% with x = '<' ~ m %}{{ x }}{% endwith %}", "<[A<x>b]"},
      {"{% macro f(x) %}({{ caller(x) }}){% endmacro %}{% call(y) f(m) %}{{ y }}!{% endcall %}",
       "([A<x>b]!)"},
      {"{% for x in [['a', [m]]] recursive %}{% if x is string %}{{ x }}{% else %}"
       "<{{ loop(x) }}>{% endif %}{% endfor %}",
       "<a<[A<x>b]>>"},
      {"{% for x in 'ab' %}{{ loop.cycle('c', m) }}{% endfor %}", "c[A<x>b]"},
      {"{% set j = joiner(m) %}{{ j() }}1{{ j() }}", "1[A<x>b]"},
      {"{{ '<%s|%d|%5s>' % (m, l[1], sp) }}", "<[A<x>b]|[5]| [  q ]>"},
      {"{{ '<%s>'|format(m) }}{{ '%(k)s'|format(k=m) }}{{ (m ~ '%s') % 'c' }}",
       "<[A<x>b]>[A<x>bA<x>b]c"},
      {"{{ '{}-{:>8}-{!r}'.format(m, m, m) }}", "[A<x>b]-   [A<x>b]-['A<x>b']"},
      {"{{ (f ~ '!').format('c') }}", "[<]c[  ]!"},
      {"{{ m * 2 }}{{ [m] * 2 }}", "[A<x>bA<x>b][['A<x>b'], ['A<x>b']]"},
      {"{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(m, *l[:1], **d) }}",
       "(['A<x>b'], ['p']){['key']: ['v\\n']}"},
      {"{{ dict(**d) }}{{ namespace(**d).key }}", "{['key']: ['v\\n']}[v\n]"},
      {"{{ m.index('x') }}{{ l.index(5) }}", "21"},
  };
  for (const auto& [source, want] : cases) EXPECT_EQ(marked(source, given), want) << source;
}

TEST(Jinja, SettingsWinOverWhatAClientGives) {
  EXPECT_EQ(marked("{{ bos_token }}", {{"bos_token", "<|evil|>"}}), "<s>");
}

TEST(Jinja, RepairsIllFormedText) {
  EXPECT_EQ(marked("{{ m|trim|length }}{{ m }}", {{"m", "a\xFFz\xC3"}}), "4[a\uFFFDz\uFFFD]");
}

TEST(Jinja, AppendsToLists) {
  EXPECT_EQ(marked("{% set a = [] %}{% set _ = a.append('x') %}{% set _ = a.append([m]) %}{{ a }}",
                   {{"m", "y"}}),
            "['x', [['y']]]");
}

TEST(Jinja, StrftimeNowIsUndefinedWithoutATime) {
  EXPECT_EQ(marked("{{ strftime_now is defined }}", {}), "False");
}

TEST(Jinja, ListsWhatItReads) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"{% if tools %}{{ enable_thinking }}{% endif %}", {"enable_thinking", "tools"}},
      {"{% for m in messages %}{{ m.x + loop.index }}{% endfor %}", {"messages"}},
      {"{% for m in xs if m > n %}{{ m }}{% else %}{{ m }}{% endfor %}", {"m", "n", "xs"}},
      {"{% set a = 1 %}{{ a }}{% set b = b or 2 %}", {"b"}},
      {"{% if not x is defined %}{% set x = 1 %}{% endif %}{{ x }}", {"x"}},
      {"{% if c %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{{ x }}", {"c"}},
      {"{% if c %}{% set x = 1 %}{% elif d %}{% set x = 2 %}{% endif %}{{ x }}", {"c", "d", "x"}},
      {"{% if c %}{% set x = 1 %}{% else %}{{ raise_exception(e) }}{% endif %}{{ x }}", {"c", "e"}},
      {"{% for i in range(2) %}{% set x = i %}{% endfor %}{{ x }}", {"x"}},
      {"{% macro f(a, b=c) %}{{ a ~ b ~ d }}{{ f(1) }}{% endmacro %}{{ f(b=e) }}", {"c", "d", "e"}},
      {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ x }}{% endmacro %}{{ f() }}",
       {"x"}},
      {"{% set ns = namespace(a=p) %}{% set ns.a = q %}{{ ns.r }}", {"p", "q"}},
      {"{% set x %}{{ y }}{% set z = 1 %}{% endset %}{{ x ~ z }}", {"y", "z"}},
      {"{% with a = b, c = a %}{{ a ~ c ~ d }}{% endwith %}{{ c }}", {"a", "b", "c", "d"}},
      {"{% macro f() %}{{ caller(g) ~ varargs ~ kwargs }}{% endmacro %}"
       "{% call(x, y=h) f(z) %}{{ x ~ y ~ w }}{% endcall %}",
       {"g", "h", "w", "z"}},
      {"{{ varargs }}{% macro f(a) %}{{ caller() }}{% endmacro %}{{ f(*p, **q) }}",
       {"p", "q", "varargs"}},
      {"{% for x in xs recursive %}{{ loop(x.y) ~ joiner(s) }}{% endfor %}", {"s", "xs"}},
      {"{{ x | default(y) }}{{ 1 is eq(z) }}{{ strftime_now(f) }}", {"f", "x", "y", "z"}},
      {"text", {}},
  };
  for (const auto& [source, want] : cases) {
    EXPECT_EQ(jinja::Template(source).reads(), want) << source;
  }
}

// Unknown constructs are refused when the template is loaded, in branches that never run too.
TEST(Jinja, RefusesUnknownConstructsAtLoad) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n\n{% include 'x' %}", "line 3: the statement \"include\""},
      {"{% if false %}\n{{ x|urlize }}{% endif %}", "line 2: there is no filter urlize"},
      {"\n{{ 1 if x is prime }}", "line 2: there is no test prime"},
      {"{{ x.center(1) }}", "line 1: there is no method center()"},
      {"{{ lipsum() }}", "line 1: there is no function lipsum()"},
      {"{% for x in y %}\n{{ loop.changed }}{% endfor %}", "line 2: loop.changed"},
      {"{% call f() %}{% endcall %}", "there is no function f()"},
      {"{% call x.f() %}{% endcall %}", "line 1: "},
      {"{% call 'x' %}{% endcall %}", "line 1: a call block must call a macro by its name"},
      {"{{ range(*x, *y) }}", "line 1: a call has two arguments with *"},
      {"{{ range(**x, y=1) }}", "line 1: an argument stands after one with **"},
      {"{% with x %}{% endwith %}", "line 1: "},
      {"{% if x %}\n\n", "line 1: the block that begins here has no endif"},
      {"a\n{{ 'b", "line 2: a text is not closed"},
      {"a\n\xFF", "line 2: the text is not UTF-8"},
      {"{{ 99999999999999999999 }}", "64 bits"},
  };
  for (const auto& [source, part] : cases) {
    const std::string error =
        expect_error(ErrorCode::kUnsupported, [&, text = source] { jinja::Template{text}; });
    EXPECT_TRUE(contains(error, part)) << error;
  }
}

TEST(Jinja, NamesTheLineOfErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{{ x.y }}", "line 2: \"x\" is undefined"},
      {"\n\n{{ raise_exception('no ' ~ 'tools') }}", "line 3: no tools"},
      {"{{ 1 }}\n{{ 'a' + 1 }}", "line 2: + cannot join a text and an integer"},
      {"{{ x + 'a' }}", "\"x\" is undefined"},
      {"{{ 'a' * 'b' }}", "* cannot join a text and a text"},
      {"{{ 'a' % 3 }}", "more values than its format takes"},
      {"{{ '%s%s' % 3 }}", "not enough values"},
      {"{{ '%y' % 3 }}", "\"%y\" is not supported"},
      {"{{ '{a.b}'.format(1) }}", "no value \"a.b\""},
      {"{{ '{:%d}'.format(1) }}", "\":%d\" is not supported"},
      {"{% for x in xs %}\n{{ loop(xs) }}{% endfor %}", "line 2: loop() is called in a loop"},
      {"{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}", "m has no argument caller"},
      {"{% set m = 1 %}{% call m() %}{% endcall %}", "calls m, which is an integer"},
      {"{{ range(**xs) }}", "** unpacks a list"},
      {"{{ dict(a=1, **{'a': 2}) }}", "a is given by name and by **"},
      {"{{ joiner(xs) }}", "a joiner joins with a text, not with a list"},
      {"{{ xs|map('upper') }}", "generator"},
      {"{{ 9223372036854775807 + 1 }}", "64 bits"},
      {"{{ 2 ** 63 }}", "64 bits"},
      {"{{ -9223372036854775807 - 2 }}", "64 bits"},
      {"{{ range(100001) }}", "100000"},
      {"{{ d|int(base=99) }}", "base"},
      {"{{ xs|join(', ', bad=1) }}", "no argument bad"},
  };
  for (const auto& [source, part] : cases) {
    const std::string error = expect_error(ErrorCode::kInvalidArgument, [&, text = source] {
      render(text, {{"xs", {"a"}}});
    });
    EXPECT_TRUE(contains(error, part)) << source << ": " << error;
    EXPECT_EQ(printable(error, error.size()), error);
  }
}

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

TEST(Jinja, LimitsWhatATemplateCosts) {
  const std::string loop = "{% for a in range(99999) %}";
  const std::pair<std::string, const char*> cases[] = {
      {loop + loop + "{% endfor %}{% endfor %}", "steps"},
      // Texts that double, in one variable and in the output.
      {"{% set ns = namespace(t='ab') %}" + loop + "{% set ns.t = ns.t + ns.t %}{% endfor %}",
       "limit"},
      {"{% set ns = namespace(t='ab') %}" + loop +
           "{% set ns.t = ns.t|replace('a', 'aaaaaaaaaa') %}{% endfor %}",
       "limit"},
      {"{% set ns = namespace(t=[1]) %}" + loop + "{% set ns.t = ns.t + ns.t %}{% endfor %}",
       "steps"},
      {"{% set ns = namespace(t=[1]) %}" + loop + "{% set ns.t = [ns.t, ns.t] %}{% endfor %}",
       "nested"},
      {"{% set ns = namespace(t='') %}{% set ns.t = ns %}", "a namespace"},
      {"{% set ns = namespace() %}{% for a in [1] %}{% set ns.t = loop %}{% endfor %}", "the loop"},
      {"{% set a = [] %}{% set _ = a.append(a) %}", "itself"},
      {"{% set a = [] %}{% set b = [a] %}{% set _ = a.append(b) %}", "nested"},
      {"{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "deep"},
      {"{% macro f(x) %}" + repeated("{% if 1 %}", 90) + "{{ f(x) }}" +
           repeated("{% endif %}", 90) + "{% endmacro %}{{ f(1) }}",
       "deep"},
      {"{% set ns = namespace() %}{% for a in [1] %}{% macro f() %}{% endmacro %}"
       "{% set ns.f = f %}{% endfor %}{% set f = ns.f %}{{ f() }}",
       "outside of the block"},
  };
  for (const auto& [source, part] : cases) {
    const std::string error =
        expect_error(ErrorCode::kInvalidArgument, [&, text = source] { render(text); });
    EXPECT_TRUE(contains(error, part)) << source << ": " << error;
  }
  // What the later constructs could cost.
  const std::pair<std::string, const char*> further[] = {
      {"{{ 'ab' * 99999999 }}", "limit"},
      {"{{ 'ab' * 9223372036854775807 }}", "limit"},
      {loop + "{{ 'a' * 9999 }}{% endfor %}", "steps"},
      {"{{ [1] * 100001 }}", "100000"},
      {"{{ [1, 2] * 9223372036854775807 }}", "100000"},
      {"{{ '%100001d' % 1 }}", "100000"},
      {"{{ '{:100001}'.format(1) }}", "100000"},
      {"{{ '%.301f' % 1 }}", "300"},
      {"{% set ns = namespace(t='%s%s') %}" + loop +
           "{% set ns.t = '%s%s' % (ns.t, ns.t) %}{% endfor %}",
       "limit"},
      {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "deep"},
      {"{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}", "deep"},
      {"{% macro f() %}{{ caller() }}{% call f() %}{% endcall %}{% endmacro %}"
       "{% call f() %}{% endcall %}",
       "deep"},
      {"{% macro f() %}{{ kwargs|length }}{% endmacro %}{% set ns = namespace(d={}) %}"
       "{% for a in range(999) %}{% set ns.d = dict(ns.d, **{'k' ~ a: 1}) %}{{ f(**ns.d) }}"
       "{% endfor %}",
       "steps"},
      {"{% macro f() %}{{ varargs|length }}{% endmacro %}" + loop +
           "{{ f(*range(99999)) }}{% endfor %}",
       "steps"},
  };
  for (const auto& [source, part] : further) {
    const std::string error =
        expect_error(ErrorCode::kInvalidArgument, [&, text = source] { render(text); });
    EXPECT_TRUE(contains(error, part)) << source << ": " << error;
  }
  EXPECT_EQ(marked("{% set a = [[]] %}{% set _ = a[0].append([[1]]) %}{{ a }}", {}), "[[[[1]]]]");
  const std::string deep[] = {"{{ " + repeated("(", 500) + "1" + repeated(")", 500) + " }}",
                              "{{ 1" + repeated(" + 1", 500) + " }}",
                              "{{ " + repeated("not ", 500) + "1 }}",
                              repeated("{% if 1 %}", 200) + repeated("{% endif %}", 200),
                              std::string(jinja::kMaxSourceBytes + 1, ' ')};
  for (const std::string& source : deep) {
    expect_error(ErrorCode::kUnsupported, [&] { jinja::Template{source}; });
  }
}

TEST(Jinja, RefusesIntegersAndNestingThatItCannotHold) {
  Json deep = 1;
  for (int i = 0; i < 120; ++i) deep = Json::array({deep});
  EXPECT_TRUE(contains(expect_error(ErrorCode::kInvalidArgument,
                                    [&] {
                                      render("{{ m }}", {{"m", deep}});
                                    }),
                       "nested"));
  EXPECT_TRUE(contains(expect_error(ErrorCode::kInvalidArgument,
                                    [&] {
                                      render("{{ m }}", {{"m", UINT64_MAX}});
                                    }),
                       "64 bits"));
}

}  // namespace
}  // namespace sluice
