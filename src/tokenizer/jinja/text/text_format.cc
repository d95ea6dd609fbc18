// One writer of a value by a specification, and the two syntaxes around it. Source: Python's
// unicode_format.c and "Format Specification Mini-Language".
#include "tokenizer/jinja/text/text_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "core/printable.h"
#include "tokenizer/jinja/format.h"
#include "tokenizer/jinja/text/text_methods.h"
#include "tokenizer/unicode.h"

namespace sluice::jinja {
namespace {

constexpr int64_t kMaxPrecision = 300;  // as round's
constexpr std::string_view kDigits = "0123456789";

// How one value is written.
struct Spec {
  char type = 0;   // 0: as str() writes it
  char align = 0;  // '<', '>', '^', or '=' for padding behind the sign; 0: by the value's type
  char sign = '-';
  std::string fill = " ";
  bool groups = false;  // a comma before each third digit
  int64_t width = 0;
  std::optional<int64_t> precision;
};

// Reads a format from left to right.
class Reader {
 public:
  Reader(Run& run, std::string_view text) : run_(run), text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  size_t position() const { return at_; }
  bool is_any(std::string_view chars) const {
    return !at_end() && chars.find(text_[at_]) != chars.npos;
  }
  bool skip(char c) { return is_any({&c, 1}) && (++at_, true); }
  char take() {
    if (at_end()) run_.fail("a format ends within a field");
    return text_[at_++];
  }
  std::string_view take_until(char end) {
    const size_t begin = at_;
    const size_t stop = text_.find(end, begin);
    if (stop == text_.npos) run_.fail("a format has no \"{}\" after a field", end);
    at_ = stop + 1;
    return text_.substr(begin, stop - begin);
  }
  // Digits, 0 without any.
  int64_t number(int64_t limit) {
    int64_t value = 0;
    while (is_any(kDigits)) {
      value = value * 10 + (text_[at_++] - '0');
      if (value > limit) run_.fail("a format has a number over {}", limit);
    }
    return value;
  }
  // The character at the position, with its bytes.
  std::string_view character() const {
    if (at_end()) return {};
    const auto size = static_cast<size_t>(unicode::decode(text_.data() + at_).num_bytes);
    return text_.substr(at_, size);
  }
  bool follows(size_t offset, std::string_view chars) const {
    return at_ + offset < text_.size() && chars.find(text_[at_ + offset]) != chars.npos;
  }
  void advance(size_t bytes) { at_ += bytes; }

 private:
  Run& run_;
  std::string_view text_;
  size_t at_ = 0;
};

// The absolute value of a number, and whether it is negative: padding may stand between the two.
struct Digits {
  std::string text;
  bool is_negative = false;
};

// By printf, whose conversions of these letters are Python's; % is f of the hundredfold.
Digits float_digits(const Spec& spec, double value) {
  char buffer[700];  // the largest double has 309 digits before the point
  const bool is_percent = spec.type == '%';
  const char letter = is_percent ? 'f' : spec.type;
  const char pattern[] = {'%', '.', '*', letter, '\0'};
  const auto precision = static_cast<int>(spec.precision.value_or(6));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int size = std::snprintf(buffer, sizeof(buffer), pattern, precision,
                                 std::fabs(value) * (is_percent ? 100 : 1));
#pragma GCC diagnostic pop
  return {std::string(buffer, static_cast<size_t>(size)) + (is_percent ? "%" : ""),
          std::signbit(value) && !std::isnan(value)};
}

// In base 10, or that of x, X, o and b.
Digits integer_digits(const Spec& spec, int64_t value) {
  const auto size = value < 0 ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  char buffer[72];
  const int base = spec.type == 'x' || spec.type == 'X' ? 16
                   : spec.type == 'o'                   ? 8
                   : spec.type == 'b'                   ? 2
                                                        : 10;
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof(buffer), size, base).ptr);
  if (spec.type == 'X') {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c; });
  }
  return {std::move(text), value < 0};
}

// Commas between groups of three digits of the whole part, which zeros make as long as the text
// needs for `width`.
std::string grouped(std::string digits, size_t width) {
  size_t end = std::min(digits.find_first_not_of(kDigits), digits.size());
  const size_t rest = digits.size() - end, before = end;
  while (end + (end - 1) / 3 + rest < width) ++end;
  digits.insert(0, end - before, '0');
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

// Writes values into one text.
class Writer {
 public:
  Writer(Run& run, const MarkedText& format) : run_(run), format_(format) {}

  // Bytes of the format as they are.
  void copy(size_t begin, size_t end) {
    out_.append(format_, begin, end);
    run_.check_size(out_.size());
  }

  // A text, cut to the precision.
  void text(const Spec& spec, MarkedText value) {
    if (spec.precision && num_characters(value.bytes()) > *spec.precision) {
      value = value.slice(0, byte_of_character(value.bytes(), *spec.precision));
    }
    pad(spec, spec.align ? spec.align : '<', {}, value);
  }

  // A number, marked as its value is.
  void number(const Spec& spec, Digits digits, bool given) {
    const std::string sign = digits.is_negative ? "-"
                             : spec.sign == '-' ? ""
                                                : std::string(1, spec.sign);
    if (spec.groups) {
      const auto width =
          static_cast<size_t>(spec.width) - std::min(sign.size(), static_cast<size_t>(spec.width));
      const bool fills = spec.align == '=' && spec.fill == "0";
      digits.text = grouped(std::move(digits.text), fills ? width : 0);
    }
    pad(spec, spec.align ? spec.align : '>', MarkedText(sign, given),
        MarkedText(std::move(digits.text), given));
  }

  MarkedText take() { return std::move(out_); }

 private:
  void pad(const Spec& spec, char align, const MarkedText& sign, const MarkedText& value) {
    const int64_t size = num_characters(sign.bytes()) + num_characters(value.bytes());
    const int64_t missing = std::max<int64_t>(spec.width - size, 0);
    const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
    run_.spend_text(value.size() + static_cast<size_t>(missing) * spec.fill.size());
    if (align == '=') out_.append(sign);
    fill(spec, before);
    if (align != '=') out_.append(sign);
    out_.append(value);
    fill(spec, missing - before);
    run_.check_size(out_.size());
  }

  void fill(const Spec& spec, int64_t count) {
    std::string padding;
    for (int64_t i = 0; i < count; ++i) padding += spec.fill;
    out_.append(padding, format_.has_given());
  }

  Run& run_;
  const MarkedText& format_;
  MarkedText out_;
};

// repr(): as an element of a list is written.
MarkedText repr(Run& run, const Value& value) {
  const MarkedText list = to_text(run, make_list(run, {value}));
  return list.slice(1, list.size() - 1);
}

// The text of ["%", flags, width, precision, type] after the "%" and its name.
Spec read_conversion(Run& run, Reader& reader) {
  Spec spec;
  bool zero = false;
  while (reader.is_any("-+ 0")) {
    const char flag = reader.take();
    zero = zero || flag == '0';
    if (flag == '-') spec.align = '<';
    if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
  }
  spec.width = reader.number(kMaxRange);
  if (reader.skip('.')) spec.precision = reader.number(kMaxPrecision);
  if (reader.is_any("hlL")) reader.take();
  spec.type = reader.take();
  if (std::string_view("srdiufFeEgGxXo%").find(spec.type) == std::string_view::npos) {
    run.fail("the conversion \"%{}\" is not supported", printable({&spec.type, 1}));
  }
  const bool is_number = spec.type != 's' && spec.type != 'r';
  if (!spec.align) spec.align = zero && is_number ? '=' : '>';
  if (spec.align == '=') spec.fill = "0";
  return spec;
}

// Python's int() of a float, which only d, i and u take, cuts off its fraction.
void write_conversion(Run& run, const Spec& spec, const Value& value, Writer& writer) {
  if (spec.type == 's') return writer.text(spec, to_text(run, value));
  if (spec.type == 'r') return writer.text(spec, repr(run, value));
  const auto number = as_number(value);
  if (!number) run.fail("%{} of {}; it takes a number", spec.type, value.type_name());
  if (std::string_view("fFeEgG").find(spec.type) != std::string_view::npos) {
    return writer.number(spec, float_digits(spec, *number), value.given());
  }
  const auto integer = as_integer(value);
  const bool takes_floats = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
  if (!integer && !(takes_floats && std::fabs(*number) < 9.2e18)) {
    run.fail("%{} of {}; it takes an integer", spec.type, value.type_name());
  }
  Digits digits = integer_digits(spec, integer ? *integer : static_cast<int64_t>(*number));
  const auto least = static_cast<size_t>(spec.precision.value_or(0));
  if (digits.text.size() < least) digits.text.insert(0, least - digits.text.size(), '0');
  writer.number(spec, std::move(digits), value.given());
}

// The values of a %, one after the other or by name.
class PercentValues {
 public:
  PercentValues(Run& run, const Value& values) : run_(run), values_(values) {
    const List* list = values.list();
    tuple_ = list && list->kind == List::Kind::kTuple ? list : nullptr;
  }

  Value next() {
    const size_t size = tuple_ ? tuple_->items.size() : 1;
    if (used_ == size) run_.fail("% has not enough values for its format");
    ++used_;
    return tuple_ ? tuple_->items[used_ - 1] : values_;
  }

  Value named(std::string_view name) {
    const Dict* dict = values_.dict();
    if (!dict) run_.fail("% needs a dict for \"{}\"", printable(name));
    run_.spend(1 + dict->items.size() / 16);
    const Value* found = dict->find(name);
    if (!found) run_.fail("% has no value \"{}\"", printable(name));
    return *found;
  }

  // What Python takes for a mapping may be left over: it counts a list as one, and not a tuple.
  void require_used() const {
    const bool is_mapping = values_.dict() || (values_.list() && !tuple_) || values_.is_undefined();
    if (!is_mapping && used_ < (tuple_ ? tuple_->items.size() : 1)) {
      run_.fail("% has more values than its format takes");
    }
  }

 private:
  Run& run_;
  const Value& values_;
  const List* tuple_ = nullptr;
  size_t used_ = 0;
};

// [[fill]align][sign][0][width][,][.precision][type]
Spec read_spec(Run& run, std::string_view text) {
  constexpr std::string_view kAligns = "<>^=";
  Reader reader(run, text);
  Spec spec;
  const std::string_view first = reader.character();
  if (!first.empty() && reader.follows(first.size(), kAligns)) {
    spec.fill = first;
    reader.advance(first.size());
  }
  if (reader.is_any(kAligns)) spec.align = reader.take();
  if (reader.is_any("+- ")) spec.sign = reader.take();
  if (reader.skip('0')) {
    if (spec.fill == " ") spec.fill = "0";
    if (!spec.align) spec.align = '0';  // '=' for numbers, '<' for texts
  }
  spec.width = reader.number(kMaxRange);
  spec.groups = reader.skip(',');
  if (reader.skip('.')) {
    if (!reader.is_any(kDigits)) run.fail("a field has a point without a precision");
    spec.precision = reader.number(kMaxPrecision);
  }
  if (reader.is_any("sdfFeEgGxXob%")) spec.type = reader.take();
  if (!reader.at_end()) run.fail("the field \":{}\" is not supported", printable(text));
  return spec;
}

// Python's format(value, spec) of a spec that is not empty.
void write_field(Run& run, Spec spec, const Value& value, Writer& writer) {
  const bool has_zero = spec.align == '0';
  if (value.is_text() && (spec.type == 0 || spec.type == 's')) {
    if (has_zero) spec.align = '<';
    if (spec.align == '=' || spec.sign != '-' || spec.groups) run.fail("a text has no sign");
    return writer.text(spec, *value.text());
  }
  if (has_zero) spec.align = '=';
  const auto number = as_number(value);
  const auto integer = as_integer(value);
  const bool wants_integer = std::string_view("dxXob").find(spec.type) != std::string_view::npos;
  if (!number || spec.type == 's' || (!integer && wants_integer)) {
    run.fail("{} has no format \"{}\"", value.type_name(), spec.type ? spec.type : 's');
  }
  if (integer && (spec.type == 0 || wants_integer)) {
    if (spec.precision) run.fail("an integer has no precision");
    return writer.number(spec, integer_digits(spec, *integer), value.given());
  }
  if (spec.type) return writer.number(spec, float_digits(spec, *number), value.given());
  if (spec.precision) run.fail("a precision needs a type, such as f");
  const bool is_negative = std::signbit(*number);
  writer.number(spec, {float_text(std::fabs(*number)), is_negative}, value.given());
}

// The values of a str.format(), by name, by number or one after the other.
class FieldValues {
 public:
  FieldValues(Run& run, const Args& args) : run_(run), args_(args) {}

  const Value& find(std::string_view name) {
    if (name.empty() || kDigits.find(name[0]) != kDigits.npos) return by_number(name);
    run_.spend(1 + args_.named.size() / 16);
    const auto at = std::find_if(args_.named.begin(), args_.named.end(),
                                 [&](const auto& argument) { return argument.first == name; });
    if (at == args_.named.end()) run_.fail("format has no value \"{}\"", printable(name));
    return at->second;
  }

 private:
  const Value& by_number(std::string_view name) {
    size_t index = next_;
    if (name.empty()) {
      ++next_;
    } else {
      const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
      if (parsed.ec != std::errc{} || parsed.ptr != name.data() + name.size()) {
        run_.fail("the field \"{}\" is not supported", printable(name));
      }
      has_numbers_ = true;
    }
    if (has_numbers_ && next_ > 0) run_.fail("format has fields with and without numbers");
    if (index >= args_.positional.size()) run_.fail("format has not enough values");
    return args_.positional[index];
  }

  Run& run_;
  const Args& args_;
  size_t next_ = 0;
  bool has_numbers_ = false;
};

// One field without its braces: name, "!" conversion, ":" specification.
void write_field(Run& run, std::string_view field, FieldValues& values, Writer& writer) {
  const size_t colon = std::min(field.find(':'), field.size());
  const std::string_view spec = colon < field.size() ? field.substr(colon + 1) : "";
  std::string_view name = field.substr(0, colon);
  const size_t mark = std::min(name.find('!'), name.size());
  const std::string_view conversion = name.substr(mark);
  name = name.substr(0, mark);
  if (!conversion.empty() && conversion != "!r" && conversion != "!s") {
    run.fail("the conversion \"{}\" is not supported", printable(conversion));
  }
  const Value& found = values.find(name);
  const Value value = conversion == "!r"   ? Value(repr(run, found))
                      : conversion == "!s" ? Value(to_text(run, found))
                                           : found;
  if (spec.empty()) return writer.text({}, to_text(run, value));
  write_field(run, read_spec(run, spec), value, writer);
}

}  // namespace

MarkedText format_percent(Run& run, const MarkedText& format, const Value& values) {
  run.spend_text(format.size());
  Writer writer(run, format);
  PercentValues given(run, values);
  Reader reader(run, format.bytes());
  while (!reader.at_end()) {
    run.spend(1);
    const size_t begin = reader.position();
    const size_t at = std::min(format.bytes().find('%', begin), format.size());
    writer.copy(begin, at);
    reader.advance(at - begin);
    if (!reader.skip('%')) break;
    std::optional<Value> named;
    if (reader.skip('(')) named = given.named(reader.take_until(')'));
    const Spec spec = read_conversion(run, reader);
    if (spec.type == '%') {
      writer.copy(reader.position() - 1, reader.position());
    } else {
      write_conversion(run, spec, named ? *named : given.next(), writer);
    }
  }
  given.require_used();
  return writer.take();
}

MarkedText format_fields(Run& run, const MarkedText& format, const Args& args) {
  run.spend_text(format.size());
  Writer writer(run, format);
  FieldValues values(run, args);
  Reader reader(run, format.bytes());
  while (!reader.at_end()) {
    run.spend(1);
    const size_t begin = reader.position();
    const size_t at = std::min(format.bytes().find_first_of("{}", begin), format.size());
    writer.copy(begin, at);
    reader.advance(at - begin);
    if (reader.at_end()) break;
    const char brace = reader.take();
    if (reader.skip(brace)) {  // {{ and }} stand for one
      writer.copy(at, at + 1);
    } else if (brace == '}') {
      run.fail("a format has a single }}");
    } else {
      const std::string_view field = reader.take_until('}');
      if (field.find('{') != field.npos) run.fail("fields within fields are not supported");
      write_field(run, field, values, writer);
    }
  }
  return writer.take();
}

}  // namespace sluice::jinja
