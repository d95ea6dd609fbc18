"""Small Jinja programs, one for each rule of the language that chat templates rely on.

Used by make_jinja_golden.py. Those that jinja2 refuses must be refused by Sluice too.
"""

VARIABLES = {
    "s": "  Héllo wörld \n", "t": "a,b,,c", "n": 7, "f": 2.5, "yes": True, "no": False,
    "nil": None, "xs": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"],
    "d": {"b": 1, "a": "x", "items_": [1], "n": None, "t": True}, "empty": [], "e": "",
    "people": [{"name": "Bo", "age": 3, "tag": {"k": 1}}, {"name": "al", "age": 5},
               {"name": "Cy", "age": 3, "vip": True}],
    "nested": {"list": [1, "two", [None, 2.0, {"k": "it's \"q\" \\ \n\u00e9\u200b"}]]},
    "lines": "one\n\n  two\nthree\n", "big": 9007199254740993, "tiny": 1e-7, "huge": 1e300,
}

EXPRESSIONS = """
1 + 2 * 3 - 4
(1 + 2) * 3
7 // 2, -7 // 2, 7 % 3, -7 % 3, 7 % -3
7 / 2, 8 / 2, 2 ** 10, 2 ** -1, -2 ** 2
1.5 + 1, 7.5 // 2, -7.5 % 2
1 ~ 'a' ~ none ~ true ~ 2.0
'a' ~ 1 + 2
-n, +n, -f
1e3, 1.5e-3, 1_000, 0.1 + 0.2
big, tiny, huge, big + 1
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, true == 1, 'a' == 'a', none == none
1 != 2 and not no
no or 'x', yes and 'y', nil or e or 0
not yes or yes
not 'a' in 'b'
'a' not in 'abc', 'a' in 'abc', 2 in xs, 'b' in d, 'z' in d
'yes' if n > 5 else 'no'
'yes' if n > 9
'a' if no else 'b' if no else 'c'
[1, 'a', none, true, 2.5, [], {}, ()]
{'a': 1, 'b': [2]}, (1,), (1, 2)
'it\\'s', "q\\"q", ['it\\'s', 'q"q', 'both\\'"']
'\\n\\t\\\\ \\x41 \\u00e9 \\d'
'a' 'b' "c"
d.b, d['b'], d.zz, d['zz'], d.n, d.t
d.zz is defined, zz is defined, d.b is defined
zz
zz.y
zz['y']
zz + 'a'
zz ~ 'a'
zz|length, zz|default('q'), e|default('q'), e|default('q', true), zz|list
xs[0], xs[-1], xs[9], xs[1:], xs[::-1], xs[:2], xs[-2:], xs[::2], xs[5:], xs[2:0:-1]
s[2:5], s[-3:], s[::-1], s[3], s[99]
t[::2], t[1:-1]
xs.0, nested.list.1
people[0].name, people[0]['tag'].k, people[1].tag
s.strip(), s.lstrip(), s.rstrip(), s|trim
'xxaxx'.strip('x'), 'xyaxy'.lstrip('yx'), 'abc'.rstrip('bc')
t.split(','), t.split(',', 1), ' a  b '.split(), 'a  b c'.split(none, 1), t.rsplit(',', 1)
''.split(), ''.split(','), 'a'.split('b')
t.split('')
lines.splitlines(), lines.splitlines(true)
'abc'.startswith('a'), 'abc'.endswith('bc'), 'abc'.startswith(('x', 'a')), 'abc'.endswith('')
'aXbX'.replace('X', 'y'), 'aXbX'.replace('X', 'y', 1), 'ab'.replace('', '-'), 'ab'.replace('', '-', 2)
'hÉ'.upper(), 'HÉ'.lower(), "they're here 2x".title(), 'hELLO wORLD'.capitalize()
"they're (foo) bar-baz [q] {z} <y>"|title, 'hELLO wORLD'|capitalize
'héllo'.find('l'), 'abc'.find('z'), 'abab'.count('ab'), 'ab'.count('')
', '.join(words), '-'.join('abc')
'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py'), 'x'.removeprefix('y')
d.items()|list, d.keys()|list, d.values()|list, d.get('b'), d.get('z'), d.get('z', 4)
d|items|list, d|length, s|length, xs|length, zz|items|list
5|length
d|tojson
nested|tojson
nested|tojson(indent=2)
nested|tojson(ensure_ascii=true)
nested|tojson(separators=(',', ':'))
d|tojson(sort_keys=true)
d|tojson(indent=4, sort_keys=true)
[]|tojson(indent=2), {}|tojson, 'é\\u2028</script>&\\''|tojson, 1.0|tojson, huge|tojson, tiny|tojson
zz|tojson
(1, 2)|tojson, true|tojson, none|tojson
nested
nested|string, 5|string, none|string, true|string
words|join, words|join(', '), people|join('+', attribute='name'), xs|join('-')
words|list, 'héy'|list, d|list
words|map('upper')|list, words|map('length')|list, people|map(attribute='name')|join(',')
people|map(attribute='tag.k', default=0)|list
people|map(attribute='vip', default='-')|join
xs|map('string')|join('/'), words|map('replace', 'p', 'q')|list
xs|select('gt', 1)|list, xs|reject('equalto', 2)|list, [0, 1, '', 'a']|select|list, xs|reject('in', [1])|list
people|selectattr('vip')|map(attribute='name')|list
people|selectattr('age', 'equalto', 3)|map(attribute='name')|list
people|selectattr('tag', 'defined')|list|length
people|rejectattr('age', 'eq', 3)|map(attribute='name')|list
words|first, words|last, empty|first, 'abc'|first
words|sort, words|sort(reverse=true), words|sort(case_sensitive=true)
people|sort(attribute='age')|map(attribute='name')|list
people|sort(attribute='name', reverse=true)|map(attribute='name')|list
words|unique|list, [1, 1.0, 2, true]|unique|list, people|unique(attribute='age')|map(attribute='name')|list
xs|reverse|list, 'héy'|reverse
xs|min, xs|max, words|min, people|max(attribute='age'), empty|max
xs|sum, people|sum(attribute='age'), [[1], [2]]|sum(start=[]), empty|sum
['a']|sum
d|dictsort, {'B': 2, 'a': 3}|dictsort, {'B': 2, 'a': 3}|dictsort(true)
{'b': 2, 'a': 3}|dictsort(by='value'), {'b': 2, 'a': 3}|dictsort(reverse=true)
'42'|int, 'x'|int, 'x'|int(7), '3.9'|int, 3.9|int, true|int, '-3'|int, 'ff'|int(base=16), ' 5 '|int
'1.5'|float, 'x'|float, 3|float, 'x'|float(2.0)
-3|abs, (-3)|abs, -2.5|abs
2.5|round, 3.5|round, 2.675|round(2), 7|round, 2.1|round(0, 'ceil'), 2.19|round(1, 'floor'), 1234.5678|round(2)
lines|indent, lines|indent(2, true), lines|indent(2, blank=true), lines|indent('> '), ''|indent
'<b>&'|safe
5|safe
s|upper, s|lower, 'a'|replace('a', 'b'), 'aaa'|replace('a', 'b', 2), 5|replace(5, 6)
yes is true, 1 is true, no is false, nil is none, s is string, n is number
n is integer, f is float, yes is boolean, yes is integer, yes is number
d is mapping, xs is sequence, d is sequence, s is sequence
n is sequence, xs is iterable, n is iterable, zz is iterable
n is eq 7, n is equalto(7), n is ne 7, n is gt 3, n is lt(3), n is ge 7, n is le 7, n is in [7], 'a' is in 'abc'
n is not none, n is not defined, zz is undefined, zz is not undefined
range is callable, d.items is callable, n is callable
range(3)|list, range(1, 7, 2)|list, range(3, 0, -1)|list, range(0)|list
range(100001)|list
dict(a=1, b=2), dict({'x': 1}, y=2)
strftime_now('%d %b %Y'), strftime_now('%Y-%m-%dT%H:%M:%S %A %B %j %p'), strftime_now is defined
raise_exception('no')
xs + [4], [1] + xs[:1], (1, 2) + (3,)
xs + (4,)
'a' + 1
1 + 'a'
'a' + none
none + 1
1 < 'a'
'a' < 'b', 'B' < 'a', [1, 2] < [1, 3]
1 / 0
1 // 0
1 % 0
'a' in 5
5 in 'a'
n.foo, s.foo, xs.foo, none.foo
none.foo.bar
n()
zz()
d.nothing()
unknown_function()
n|unknown_filter
n is unknown_test
{'a': 1}['a'], {'a': {'b': 2}}.a.b, [[1, 2], [3]][0][1]
"{{ not a tag }}" ~ '%}'
{'k': {'j': 1}}
{}.get('a'), {} == {}, [] == [], (1, 2) == [1, 2]
xs|map('upper')|first
words|map('first')|join
(words|map('upper')|list)[0]
words|map('upper')|length
xs|map|list
words is string or xs is iterable and not yes
(n) is number, n+1 is number
n == 7 and s is string, 'a' if s is string else 'b'
1 if yes else 2 ~ 'x'
nil is not none and n
[1, 2, 3,], {'a': 1,}, (1, 2,)
[xs, words]|map('length')|list, [xs, words]|map('first')|list
true, True, false, False, none, None
loop
lines.split('\\n')[0], lines.split('\\n')|length
'%s' is string
'abc'[1:][0], 'abc'[-1], 'abc'[true]
'Ünïcode ǅ'|lower, 'ünïcode'|upper
'ab' * 0 if no
messages is defined
not zz, zz == zz, zz == none, zz is none, zz or 'd', zz and 'd'
zz in [1], 'a' in zz
'=' * 5, 3 * 'ab', 'é' * -1, '' * 9, 'x' * true, 'ab' * 0
[1, 2] * 2, 2 * (1,), [] * 3, xs * 0
'a' * 'b'
'a' * 1.5
xs * xs
{} * 2
'a' * none
'%s-%d-%i' % ('a', 3, 4.9), '%s' % 'x', '%s' % 5, '%s|%s' % (none, true), '%d%%' % 5
'%5s|%-5s|%.2s|%5.1s|' % ('ab', 'cd', 'efg', 'hij'), '%5s|' % 'é'
'%05d|%5d|%-5d|%+d|% d|%.3d|%+05d' % (42, 42, 42, 42, 42, 7, 3), '%05d' % -3
'%.2f|%8.3f|%-8.1f|%08.2f|%e|%G|%g' % (2.5, f, f, f, 12345.678, 1e-10, 1e20)
'%x %X %o' % (255, 255, 8), '%x' % -255
'%(a)s %(b)03d' % {'a': 1, 'b': 2}, '%(b)s' % d, 'plain' % {}, 'plain' % [], 'plain' % (), '%s' % {'a': 1}
'%r %r %r' % ('it\\'s', 1, none), '%r' % 'é\\n'
'%s' % zz, 'x' % zz
'%s %s' % 'a'
'%s' % ('a', 'b')
'plain' % 5
'%d' % 'a'
'%d' % none
'%x' % 1.5
'%(a)s' % 5
'%(zz)s' % d
'%' % 5
'%y' % 5
'%s' % (1,), '%s' % [1, 2], '%s' % xs
'%s: %s'|format('a', 1), '%s'|format(xs), '%(a)s'|format(a=5), 'x'|format, '%.1f'|format(f), 5|format
'%s'|format
'%s %(a)s'|format(1, a=2)
'{} {}'.format('a', 1), '{1}{0}'.format('a', 'b'), '{a}{b}'.format(a=1, b=none), '{{}} {}'.format(xs)
'{:>5}|{:<5}|{:^5}|{:*^6}|{:5}|{:é>3}'.format('ab', 'cd', 'ef', 'gh', 'ij', 'k')
'{:5}|{:<5}|{:05}|{:+}|{: }|{:,}|{:08,}|{:=+6}'.format(42, 42, 42, 42, 42, 1234567, 1234, 5)
'{:.2f}|{:8.3f}|{:<8.1f}|{:e}|{:,.1f}|{:.1%}|{:g}|{:010.2f}'.format(2.5, f, f, 1e10, 1234567.89, 0.25, 1e20, -f)
'{:x}{:X}{:o}{:b}{:d}'.format(255, 255, 8, 5, 7), '{!r} {!s}'.format('a', 'b'), '{0!r:>6}'.format('a')
'{:.2}|{:s}|{:>4.1}'.format('abc', 'd', 'ef'), '{:5}|{}'.format(true, true), '{:}'.format(1.0), '{:6}'.format(1.5)
'{} {}'.format(1)
'{0} {}'.format(1, 2)
'{a}'.format(1)
'{'.format(1)
'}'.format(1)
'{:d}'.format('a')
'{:d}'.format(1.5)
'{:.2d}'.format(5)
'{:s}'.format(5)
'{:>5}'.format(none)
'{:+}'.format('a')
'{:=5}'.format('a')
'abc'.index('c'), 'héé'.index('é'), 'abab'.rfind('b'), 'abab'.rindex('a'), 'ab'.rfind('z'), 'ab'.index('')
'abc'.index('z')
'abc'.rindex('z')
xs.index(1), words.index('fig'), (1, 2).index(2), [1, 1].count(1), (1, 2).count(3), [1, true, 1.0].count(1)
xs.index(9)
1 is odd, 2 is odd, -1 is odd, true is odd, 2 is even, 7 is not even, 9 is divisibleby 3, 9 is divisibleby(2)
2.0 is even, 3.0 is odd, 1.5 is odd
'a' is odd
'%d' is odd
none is even
3 is divisibleby 0
xs|select('odd')|list, range(6)|select('divisibleby', 3)|list
people|selectattr('age', '==', 3)|map(attribute='name')|list, xs|select('>', 1)|list, xs|select('<=', 2)|list
xs|reject('!=', 2)|list, xs|select('lessthan', 2)|list, xs|select('greaterthan', 2)|list, xs|select('>=', 3)|list
"{:012,.1f}|{:+09,}|{:06,}|{:,}|{:*=12,}".format(1234.5, 1234, 123, -1234567, -1234)
joiner is callable, joiner() is callable
joiner(1, 2)
range(*[1, 5, 2])|list, dict(**{'a': 1}), dict(*[{'b': 2}], c=3), 'a-b'.split(*['-']), range(*(2,), **{})|list
range(*5)
dict(**5)
dict(a=1, **{'a': 2})
"%-*s" % (5, 'a') is string
""".strip("\n").split("\n")

PROGRAMS = [
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% set a = 7 %}{{ a }}{% endwith %}{{ a }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% with a, b = (1, 2) %}{{ a }}{{ b }}{% endwith %}", "{% with a = 1 %}", "{% with a %}{% endwith %}",
    "{% with a = 1, %}{{ a }}{% endwith %}", "{% with 5 = 1 %}{% endwith %}",
    "{% for x in xs %}{% with y = x %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endwith %}{% endfor %}",
    "{% for x in xs %}{% with y = x %}{% if y == 1 %}{% continue %}{% endif %}{{ y }}{{ loop.index }}"
    "{% endwith %}{% endfor %}",
    "{% macro m(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call m('b') %}x{{ n }}{% endcall %}",
    "{% macro m(l) %}{% for x in l %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}"
    "{% call(x, i=0) m(xs) %}[{{ x }}:{{ i }}]{% endcall %}",
    "{% macro m() %}{% if caller %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ m() }}"
    "{% call m() %}some{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% call 5 %}{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
    "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call m() %}y{% endcall %}",
    "{% call zz() %}{% endcall %}", "{% call range(3) %}{% endcall %}", "{% macro m() %}{% endmacro %}{% call m() %}",
    "{% macro o() %}({{ caller() }}){% endmacro %}{% macro i() %}[{{ caller() }}]{% endmacro %}"
    "{% call o() %}{% call i() %}x{% endcall %}{% endcall %}",
    "{% macro m(caller=3) %}{{ caller }}{% endmacro %}{{ m() }}{{ m(4) }}",
    "{% set v = 1 %}{% macro m() %}{% set v = 2 %}{{ caller() }}{% endmacro %}{% call m() %}{{ v }}{% endcall %}",
    "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, z=4) }}{{ m(a=5, b=6) }}",
    "{% macro m() %}{{ varargs|join('-') }}{% endmacro %}{{ m(*xs) }}{{ m(1, *'ab') }}{{ m() }}",
    "{% macro m() %}{% for k, v in kwargs.items() %}{{ k }}={{ v }};{% endfor %}{% endmacro %}{{ m(**d) }}"
    "{{ m(q=1, **{'r': 2}) }}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1]) }}{{ m(*[1, 3]) }}{{ m(**{'b': 4, 'a': 5}) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1, 2]) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(**{'z': 1}) }}",
    "{% macro m(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(a=1, **{'a': 2}) }}", "{{ range(**{'a': 1}, *[1]) }}",
    "{{ range(*[1], *[2]) }}", "{{ range(*[1], 2) }}", "{{ range(a=1, 2) }}",
    "{% macro m(varargs) %}{{ varargs }}{% endmacro %}{{ m(1) }}",
    "{% set tree = [{'n': 1, 'c': [{'n': 2, 'c': [{'n': 3}]}, {'n': 4}]}] %}"
    "{% for x in tree recursive %}{{ x.n }}{% if x.c %}({{ loop(x.c) }}){% endif %}{% endfor %}",
    "{% set tree = [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 4}]}] %}{% for x in tree if x.n < 4 recursive %}"
    "{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{{ loop.last }}{{ x.n }}{{ loop(x.c)|upper }}"
    "{% else %}-{% endfor %}",
    "{% for x in xs %}{{ loop(xs) }}{% endfor %}", "{% for x in xs recursive %}{{ loop() }}{% endfor %}",
    "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}<{{ loop(x) }}>{% else %}{{ x }}"
    "{% endif %}{% endfor %}",
    "{% for x in xs %}{{ loop.depth }}{% for y in xs recursive %}{{ loop.depth }}{% endfor %}{% endfor %}",
    "{% for x in xs %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in xs %}{{ loop.cycle() }}{% endfor %}",
    "{% for x in xs %}{{ loop.cycle(*words) }}{{ loop.cycle is callable }}{% endfor %}", "{{ xs.cycle(1) }}",
    "{% set j = joiner() %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %}",
    "{% set j = joiner(' | ') %}{% set k = joiner(sep=5) %}{% for x in xs %}{{ j() }}{{ x }}{{ k() }}{% endfor %}",
    "{% set j = joiner() %}{{ j(1) }}", "{{ 1 is odd is odd }}",
    "", "plain", "a\n", "a\n\n", "{{ 1 }}\n{{ 2 }}\n", "{{ 1 -}}\n  x", "x  \n {{- 1 }}",
    "{% if yes %}\nA\n{% endif %}\nB", "  {% if yes %}\n  A\n  {% endif %}\n  B",
    "x {% if yes %} y {% endif %} z", "x {%- if yes -%} y {%- endif -%} z",
    "  {%+ if yes %} y{% endif %}", "{% if yes +%}\nq{% endif %}", "a{#- c -#} b", "  {# c #}\nb",
    "x {# c #}\nb", "{#- c +#}\nb", "a\r\nb\rc\n", "{{ '{{' }}{{ \"}}\" }}", "{ {% if yes %}{{% endif %}",
    "{% raw %}{{ x }}{% if %}{% endraw %}", "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "{% raw %}\nx\n{% endraw %}\ny", "  {% raw %}x{% endraw %}", "{% raw %} x", "{{ {'a': {'b': 1}} }}",
    "{% for x in xs %}{{ x }}{% endfor %}", "{% for x in xs %}\n{{ x }}\n{% endfor %}",
    "{% for x in xs if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}",
    "{% for x in empty %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in zz %}{{ x }}{% else %}undefined{% endfor %}",
    "{% for x in nil %}{{ x }}{% endfor %}", "{% for x in 5 %}{{ x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}", "{% for c in 'héy' %}{{ c }}.{% endfor %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}",
    "{% for x in xs %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}"
    "{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.nextitem is defined }},{% endfor %}",
    "{% for x in xs %}{% for y in xs %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in xs %}{% set outer = loop %}{% for y in xs %}{{ outer.index }}{% endfor %}{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% break %}",
    "{% set x = 1 %}{% for y in xs %}{% set x = y %}{{ x }}{% endfor %}{{ x }}",
    "{% set x = 0 %}{% for y in xs %}{{ x }}{% set x = 5 %}{% endfor %}",
    "{% for y in xs %}{{ q is defined }}{% set q = 1 %}{% endfor %}",
    "{% set ns = namespace(a=1, b='x') %}{% for y in xs %}{% set ns.a = ns.a + y %}{% endfor %}{{ "
    "ns.a }}{{ ns.b }}{{ ns.c }}",
    "{% set ns = namespace() %}{% set ns.x = [] %}{% set ns.x = ns.x + [1] %}{{ ns.x }}",
    "{% set x.y = 1 %}", "{% set d.y = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a = 1, 2 %}{{ a }}", "{% if yes %}{% set a = 1 %}{% endif %}{{ a }}",
    "{% set a %}x{{ n }}{% set b = 2 %}{% endset %}[{{ a }}]{{ b }}",
    "{% set a | upper | trim %} x{{ n }} {% endset %}[{{ a }}]", "{% set a | replace('x', 'y') "
    "%}xx{% endset %}{{ a }}",
    "{% filter upper %}a{{ 'b' }}{% endfilter %}", "{% filter trim | upper %} a {% endfilter %}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=1) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=1) }}",
    "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m()|trim }}]", "{% set g = 1 %}{% macro m() %}{{ g "
    "}}{% endmacro %}{% set g = 2 %}{{ m() }}",
    "{% macro m(x) %}{% set x = x + 1 %}{{ x }}{% endmacro %}{{ m(1) }}{{ x }}",
    "{% macro m(x, y=x) %}{{ y }}{% endmacro %}{{ m(3) }}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% if no %}a{% elif nil %}b{% elif yes %}c{% else %}d{% endif %}", "{% if no %}a{% else %}b{% endif %}",
    "{% if zz %}a{% else %}b{% endif %}", "{% if not zz.y %}a{% endif %}", "{% if d.q %}a{% else %}b{% endif %}",
    "{% generation %}x{{ n }}{% set v = 1 %}{% endgeneration %}{{ v is defined }}",
    "{% if empty|selectattr('x')|list %}a{% else %}b{% endif %}", "{% if empty|selectattr('x') "
    "%}a{% else %}b{% endif %}",
    "{% set g = xs|map('string') %}{{ g|join }}{{ g|join }}", "{% set _ = 5 %}{{ _ }}",
    "{% if %}", "{% if yes %}", "{% endif %}", "{% for x in xs %}", "{% for in xs %}{% endfor %}",
    "{{ }}", "{{ 1 + }}",
    "{{ 'a }}", "{{ 1", "{% if yes", "{# x", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ a b }}", "{% foo %}",
    "{% include 'x' %}", "{% do xs.append(1) %}", "{{ 1 | }}", "{{ a. }}", "{{ $ }}", "{% set true = 1 %}",
    "{{ xs[1 }}", "{{ {'a' 1} }}", "{% macro %}{% endmacro %}", "{% else %}", "{{ n is string is none }}",
    "{{ f(*xs) }}", "{% set 5 = 1 %}", "{{ '\\x4' }}",
    "{%- for m in people %}\n  {{- m.name }}\n  {%- if not loop.last %}, {% endif %}\n{%- endfor %}\n",
    "{% for p in people %}{% if p.vip is defined and p.vip %}{{ p.name }}{% endif %}{% endfor %}",
    "{{ '  ' if yes }}{{- 'x' -}}  y", "{%- if yes %}\n\n x\n{%- endif %}\n\ny\n",
    "{% set x = namespace(found=false) %}{% for p in people %}{% if p.age > 4 %}{% set x.found = p "
    "%}{% endif %}{% endfor %}{{ x.found.name }}",
    "{% for x in range(3) %}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{{ loop is defined }}",
    "{% set m = people[::-1] %}{% for p in m %}{{ p.name }}{% endfor %}{{ people[0].name }}",
    "{{ people[-1:][0].name ~ people[:1]|length }}", "{{ (people|last).name }}", "{{ "
    "people|map(attribute='name')|map('upper')|join(' ') }}",
    "{%- set x = 'a' -%}\n{{ x }}", "{{ lines }}|", "\n\n{{ 1 }}\n\n", "{% set x = 1 %}\n\n{% set y = 2 %}\n{{ x }}",
    "é{{ 'é' }}\u3042", "{{-1}}", "{{- 1}}", "{{ 1-1 }}", "{{ n-1 }}", "{{ xs|length - 1 }}", "{{ 1 "
    "if yes else 2 if no else 3 }}",
]

SNIPPETS = ["{{ " + line + " }}" for line in EXPRESSIONS] + PROGRAMS
