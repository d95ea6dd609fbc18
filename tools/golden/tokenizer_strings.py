"""Strings for tokenizer comparisons: many scripts, many ways to cut them wrongly.

Used by make_tokenizer_golden.py (a fixed seed) and check_tokenizer_live.py (any seed).
"""
import random

# Self-written sentences; they also teach the small tokenizers some merges in each script.
SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Der große Käfer läuft über die Brücke; niemand weiß, warum.",
    "L'été dernier, nous sommes allés à la mer où il pleuvait.",
    "¿Dónde está el niño que comió piñas ayer?",
    "Zażółć gęślą jaźń, a potem idź spać.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Ο γρήγορος σκύλος τρέχει στο πάρκο κάθε πρωί.",
    "Съешь ещё этих мягких французских булок, да выпей чаю.",
    "Щось дуже цікаве відбувається у нашому місті.",
    "הכלב המהיר קופץ מעל החתול העצלן.",
    "الكلب السريع يقفز فوق القط الكسول، أليس كذلك؟",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "দ্রুত বাদামী শিয়াল অলস কুকুরের উপর লাফ দেয়।",
    "விரைவான பழுப்பு நரி சோம்பேறி நாயின் மேல் குதிக்கிறது.",
    "วันนี้อากาศดีมากเราไปเที่ยวทะเลกันเถอะ",
    "ལྷ་ས་ནི་བོད་ཀྱི་རྒྱལ་ས་ཡིན།",
    "ქართული ენა ძალიან ლამაზია.",
    "Հայերենը հին լեզու է։",
    "ፈጣኑ ቀበሮ ሰነፉን ውሻ ዘለለው።",
    "敏捷的棕色狐狸跳过了懒狗。今天天气很好。",
    "素早い茶色の狐がのろまな犬を飛び越える。カタカナも。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘습니다.",
    "Con cáo nâu nhanh nhẹn nhảy qua con chó lười biếng.",
    "Hızlı kahverengi tilki tembel köpeğin üstünden atlar. İstanbul'da ılık.",
    "def main(argv):\n    for i in range(10):\n\tprint(f\"{i:>4}\")  # loop\n",
    "if (x[i] != 0x1F && y->z >= 3.14e-10) { return std::move(v); }",
    "SELECT name, COUNT(*) FROM t WHERE id IN (1,22,333,4444) GROUP BY 1;",
    "https://example.org/a/b.html?q=1&r=%20#frag user@example.com",
    "I'm sure they've said we'll go; she'd rather not. It's 'fine', isn't it?",
    "I'M SURE THEY'VE SAID WE'LL GO; SHE'D RATHER NOT. IT'S.",
    "1234567890 3.14159 1,000,000 12:34:56 2024-07-26 ١٢٣٤ १२३४ Ⅳ ½ ²³ ①②",
]

# First and last code points of blocks; assigned and unassigned characters alike.
BLOCKS = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x17F), (0x180, 0x24F), (0x250, 0x2AF), (0x2B0, 0x2FF),
    (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F), (0x590, 0x5FF), (0x600, 0x6FF),
    (0x700, 0x74F), (0x780, 0x7BF), (0x7C0, 0x7FF), (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xA7F),
    (0xA80, 0xAFF), (0xB00, 0xB7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xC80, 0xCFF), (0xD00, 0xD7F),
    (0xD80, 0xDFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F),
    (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1680, 0x169F),
    (0x1780, 0x17FF), (0x1800, 0x18AF), (0x1AB0, 0x1AFF), (0x1B00, 0x1B7F), (0x1C90, 0x1CBF),
    (0x1D00, 0x1D7F), (0x1DC0, 0x1DFF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x209F), (0x20A0, 0x20CF), (0x20D0, 0x20FF), (0x2100, 0x214F), (0x2150, 0x218F),
    (0x2190, 0x22FF), (0x2460, 0x24FF), (0x2500, 0x27BF), (0x2C00, 0x2C5F), (0x2E80, 0x2FDF),
    (0x3000, 0x303F), (0x3040, 0x30FF), (0x3130, 0x318F), (0x3200, 0x33FF), (0x4E00, 0x9FFF),
    (0xA000, 0xA4CF), (0xA640, 0xA69F), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAFF),
    (0xFB00, 0xFB4F), (0xFB50, 0xFDFF), (0xFE00, 0xFE2F), (0xFE70, 0xFEFF), (0xFF00, 0xFFEF),
    (0x10000, 0x100FF), (0x10140, 0x1018F), (0x10330, 0x1034F), (0x10400, 0x1044F),
    (0x104A0, 0x104AF), (0x11000, 0x110CF), (0x11100, 0x1114F), (0x11300, 0x1137F),
    (0x114B0, 0x114DF), (0x11580, 0x115DF), (0x12000, 0x123FF), (0x13000, 0x1342F),
    (0x16F00, 0x16F9F), (0x1D100, 0x1D1FF), (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F),
    (0x1EE00, 0x1EEFF), (0x1F100, 0x1F1FF), (0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF),
    (0x20000, 0x2A6DF), (0x2F800, 0x2FA1F), (0xE0000, 0xE007F), (0xF0000, 0xF00FF),
]
# Added between Unicode 15.0 and 16.0: letters and numbers of new scripts.
YOUNG_BLOCKS = [
    (0x1C80, 0x1C8F), (0xA7C0, 0xA7FF), (0x105C0, 0x105FF), (0x10D40, 0x10D8F), (0x10EC0, 0x10EFF),
    (0x11380, 0x113FF), (0x116D0, 0x116EF), (0x11BC0, 0x11BFF), (0x13460, 0x13480),
    (0x16100, 0x1613F), (0x16D40, 0x16D7F), (0x1CCF0, 0x1CCFF), (0x1E5D0, 0x1E5FF),
    (0x2EBF0, 0x2EC10),
]
SPACES = [chr(c) for c in (9, 10, 11, 12, 13, 0x1C, 0x1D, 0x1E, 0x1F, 0x20, 0x85, 0xA0, 0x1680,
                           0x180E, 0x2000, 0x2003, 0x2007, 0x2009, 0x200A, 0x200B, 0x200C, 0x200D,
                           0x2028, 0x2029, 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF)]
CONTRACTIONS = [q + s for q in ("'", "\u2019")
                for s in ("s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Ve", "vE", "M",
                          "LL", "Ll", "lL", "D", "\u017f", "l", "r", "v", "x", "l\u017f")]
PIECES = ["a", "b", "ab", "the", " the", "The", "ing", "e\u0301", "\u00e9", "\u1eaf", "n\u0303",
          "\u1100\u1161\u11a8", "\u1100\u1161", "\uac00\u11a8", "\u212b", "\u2126", "\u0958",
          "\u0915\u093c", "a\u0301\u0316", "a\u0316\u0301", "q\u0323\u0307", "\u1e9b\u0323",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
          "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "0", "7", "42", "123", "1234", "12345", "\u0663",
          "\u0967\u0968", "\u00b2", "\u2167", "\u00bd", "\u4e00", "\u3007", "!", "?!", "...", "--",
          "#", "_", "__init__", "/*", "*/", "=>", "<", ">", "<|", "|>", "\"", "'", "''", "\u2019",
          "\x00", "\x01", "\x7f", "\r\n", "\n", "\n\n", "\r", "\t", " ", "  ", "   ", "\u00ad"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>",
            "<|start_header_id|>", "<|end_header_id|>", "<think>", "</think>", "<|im_", "start|>",
            "<|im_start", "<think", "[WORD]", "[L]", "[R]", "[LR]", "[NORM\u00c9]",
            "[NORME\u0301]", "abcabc", "abc", "[SP ACE]", "\u00fc\u00fc", "\u4e2d\u6587"]


def fixed_strings():
    """Every case that has a name."""
    out = [""] + SENTENCES + PIECES + SPACES + CONTRACTIONS + SPECIALS
    out += [c + w for c in CONTRACTIONS for w in (" a", "a", "'s", "1")]
    out += [w + c for c in CONTRACTIONS for w in ("a", "1 ", " ", "!")]
    for s in SPACES:
        out += [s * 2, "a" + s + "b", s + "a", "a" + s, s + s + "a" + s + s, "1" + s + "1",
                s + "!", "!" + s + "\n", " " + s, s + " ", s + "\n" + s + "x", "a" + s * 3 + "1"]
    for n in range(1, 8):
        out += [" " * n + "x", "\n" * n + "x", "x" + " \n" * n + " y", "1" * n, "a1" * n,
                "\t" * n + "x", "\r\n" * n + "x", "'" * n + "s", "!" * n + "\n\n x", "  " * n]
    for special in SPECIALS:
        out += ["a " + special + " b", special * 3, "x" + special + "y", " " + special,
                special + "\n\n", "e\u0301" + special + "\u0301"]
    return out


def random_strings(rng, count):
    """Mixtures of scripts; new scripts only without marks that would need normalizing."""
    def from_block(first, last, length):
        return "".join(chr(rng.randint(first, last)) for _ in range(length))

    out = []
    for block in BLOCKS + YOUNG_BLOCKS:
        for _ in range(3):
            words = [from_block(*block, rng.randint(1, 5)) for _ in range(rng.randint(1, 4))]
            out.append(rng.choice([" ", "", "1", "\n", " a", "!"]).join(words))
    while len(out) < count:
        parts = []
        for _ in range(rng.randint(2, 9)):
            kind = rng.random()
            if kind < 0.40:
                parts.append(rng.choice(PIECES))
            elif kind < 0.50:
                parts.append(rng.choice(SPACES) * rng.randint(1, 3))
            elif kind < 0.58:
                parts.append(rng.choice(CONTRACTIONS))
            elif kind < 0.64:
                parts.append(rng.choice(SPECIALS))
            elif kind < 0.84:
                sentence = rng.choice(SENTENCES)
                start = rng.randrange(len(sentence))
                parts.append(sentence[start:start + rng.randint(1, 16)])
            else:
                parts.append(from_block(*rng.choice(BLOCKS), rng.randint(1, 3)))
        out.append("".join(parts))
    return out


def long_runs():
    """(unit, count) pairs: too long to write out."""
    return [("a", 5000), (" ", 5000), ("\n", 3000), ("1", 2000), ("!", 3000), ("ab", 3000),
            ("\u4e2d", 2000), ("the ", 1000), ("\u0301", 1000), ("a\u0301", 1000),
            ("\u0301\u0316", 400), (" \n", 1500), ("\U0001f600", 600), ("aB1 ", 600), ("'", 1500),
            ("=", 4000), ("\u1100\u1161\u11a8", 500), ("abcdefghijklm", 400)]


def seeded(seed, count):
    return random_strings(random.Random(seed), count)
