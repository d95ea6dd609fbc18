// Answers and the events that a scanner makes of them, by hand.
//
// Used by the tests of the scanner. Thread rule: free functions.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/answer_scanner.h"

namespace sluice::testing {

inline constexpr AnswerFormat kPlain{};
inline constexpr AnswerFormat kThinks{.thinks = true};
inline constexpr AnswerFormat kInside{.thinks = true, .starts_in_thought = true};
inline constexpr AnswerFormat kHermes{.tools = ToolFormat::kHermes};
inline constexpr AnswerFormat kQwen3{.thinks = true, .tools = ToolFormat::kHermes};
inline constexpr AnswerFormat kCoder{.tools = ToolFormat::kQwen3Coder};
inline constexpr AnswerFormat kQwen35{.thinks = true, .tools = ToolFormat::kQwen3Coder};
inline constexpr AnswerFormat kLlama{.tools = ToolFormat::kLlama3Json};

// `want`: the events as "kind:text", joined by |.
struct Fixture {
  AnswerFormat format;
  std::string text;
  std::string want;
  AnswerEnd end = AnswerEnd::kModel;
};

inline std::vector<Fixture> thoughts() {
  return {
      {kPlain, "", ""},
      {kPlain, "\n<think>a</think>\n", "content:\n<think>a</think>\n"},
      {kPlain, "<tool_call>{\"name\": \"f\"}", "content:<tool_call>{\"name\": \"f\"}"},
      {kThinks, "<think>\nhm\n\nhm\n</think>\n\nSo\n", "thought:hm\n\nhm|content:So\n"},
      {kThinks, " \n<think></think>x", "content:x"},
      {kThinks, "no <think>thought</think>", "content:no <think>thought</think>"},
      {kThinks, "\n\nx", "content:\n\nx"},
      {kThinks, "<thin", "content:<thin"},
      {kThinks, "<think>a</thin</think>b</think>", "thought:a</thin|content:b</think>"},
      {kThinks, "<think>a<<</think>\n", "thought:a<<"},
      {kThinks, "<think>cut\n</thi", "thought:cut\n</thi"},
      {kThinks, "<think>a</think>\n <think>b", "thought:a|content: <think>b"},
      {kInside, "hm\n</think>\n\nSo", "thought:hm|content:So"},
      {kInside, "\n<think>\nhm</think>So", "thought:hm|content:So"},
      {kInside, "</think>So", "content:So"},
      {kInside, "<thi", "thought:<thi"},
  };
}

inline std::vector<Fixture> calls() {
  const std::string open = "<tool_call>", close = "</tool_call>";
  const std::string f = R"({"name": "f", "arguments": {"a": [1, "}\"]"], "b": {}}})";
  const std::string f_events = R"(call:f|args:{"a": [1, "}\"]"], "b": {}}|end)";
  return {
      {kHermes, open + "\n" + f + "\n" + close, f_events},
      {kHermes, "Let me.\n\n" + open + f + close + "\n" + open + f + close + "\n",
       "content:Let me.|" + f_events + "|" + f_events},
      {kHermes, open + f + close + "\nbetween\n" + open + f,
       f_events + "|content:between|" + f_events},
      {kHermes, open + f + open + f + close + " x", f_events + "|" + f_events + "|content: x"},
      {kHermes, open + f + " </tool", f_events},
      {kHermes, open + R"({"name":"f"})" + close, "call:f|args:{}|end"},
      {kHermes, open + R"({"name":"f","arguments":null,"id":-1.5e3})" + close,
       "call:f|args:{}|end"},
      {kHermes, open + R"({"arguments":{"x":"\u00e9"},"id":[{}],"name":"\u0066"})" + close,
       R"(call:f|args:{"x":"\u00e9"}|end)"},
      // What is not a call is content.
      {kHermes, "a\n" + open + R"({"name":"g","arguments":{}})" + close + "\nb",
       "content:a\n" + open + R"({"name":"g","arguments":{}})" + close + "\nb"},
      {kHermes, open + "\nfoo" + close + "\n", "content:" + open + "\nfoo" + close + "\n"},
      {kHermes, open + R"({"arguments":{}})", "content:" + open + R"({"arguments":{}})"},
      {kHermes, open + R"({"name":7})", "content:" + open + R"({"name":7})"},
      {kHermes, open + "\n" + open + f, "content:" + open + "|" + f_events},
      {kHermes, "x <tool_cal", "content:x <tool_cal"},
      {kHermes, open + R"({"na)", "content:" + open + R"({"na)"},
      {kQwen3, "<think>\nhm " + open + "\n</think>\n\n" + open + f + close,
       "thought:hm " + open + "|" + f_events},
  };
}

inline std::string content_of(const std::string& text) { return "content:" + text; }

// Calls that cannot be read, as written: a client would run what it got of them.
inline std::vector<Fixture> unreadable_calls() {
  std::vector<Fixture> all;
  const std::string deep = R"({"name":"f","arguments":{"a":)" + std::string(70, '[');
  for (const std::string& call : {
           std::string(R"({"name":"f","arguments":{"a":"\d"}})"),
           std::string(R"({"name":"f","arguments":{"a":1,}})"),
           std::string(R"({"name":"f","arguments":{"a":x}})"),
           std::string(R"({"name":"f","arguments":{'a':1}})"),
           std::string(R"({"name":"f","arguments":[1]})"),
           std::string(R"({"name":"f","arguments":7})"),
           std::string(R"({"name":"f","arguments":{"a":1e400}})"),
           std::string(R"({"name":"f","arguments":{"a":"\ud800"}})"),
           std::string(R"({"name":"f","arguments":{"a":1,"a":2}})"),
           std::string(R"({"name":"f","arguments":"{\"a\":"})"),
           std::string(R"({"name":"f","arguments":"a"})"),
           std::string(R"({"name":"f","arguments":"[]"})"),
           std::string(R"({"name":"f","name":"f"})"),
           std::string(R"({"name":"f","arguments":{},"parameters":{}})"),
           std::string(R"({"name":"f","arguments":{"a":1)"),  // two braces are missing
           std::string(R"({"name":"f")"),                     // perhaps its arguments, too
           std::string("{\"name\":\"f\",\"arguments\":{\"a\":\"\\\n\"}}"),
           deep,
       }) {
    const std::string text = "<tool_call>\n" + call + "\n</tool_call>";
    all.push_back({kHermes, text, content_of(text)});
    all.push_back({kHermes, "Hi\n" + text + "\nx", content_of("Hi\n" + text + "\nx")});
    all.push_back({kQwen3, "<think>a</think>\n\n" + text, "thought:a|" + content_of(text)});
    all.push_back({kLlama, call + "\n;", content_of(call + "\n;")});
  }
  // A brace that is missing is added at a closing tag alone.
  for (const char* rest : {"", "</tool_cal", "</tool>", "</tool_response>"}) {
    const std::string text = R"(<tool_call>{"name":"f","arguments":{"a":1})" + std::string(rest);
    all.push_back({kHermes, text, content_of(text)});
  }
  // One that cannot be read does not hide the next.
  const std::string bad = R"(<tool_call>{"name":"f","arguments":{"a":1,}}</tool_call>)";
  all.push_back({kHermes, bad + "\n" + R"(<tool_call>{"name":"f"}</tool_call>)",
                 content_of(bad) + "|call:f|args:{}|end"});
  return all;
}

// What is nearly JSON and can mean one thing alone.
inline std::vector<Fixture> nearly_json_calls() {
  const std::string open = "<tool_call>", close = "</tool_call>";
  return {
      {kHermes, open + "{\"name\":\"f\",\"arguments\":{\"a\":\"x\n\ty\r\"}}" + close,
       R"(call:f|args:{"a":"x\u000a\u0009y\u000d"}|end)"},
      {kHermes, open + "{\"name\":\"f\",\"arguments\":{\"a\":\"\\\\\n\\\"\n\",\"b\n\":1}}" + close,
       R"(call:f|args:{"a":"\\\u000a\"\u000a","b\u000a":1}|end)"},
      {kHermes, open + "{\"why\":\"\n\",\"name\":\"f\",\"arguments\":{}}" + close,
       "call:f|args:{}|end"},
      {kHermes, open + R"({"name":"f","arguments":"{\"a\": [\"\\n\"]}"})" + close,
       R"(call:f|args:{"a": ["\n"]}|end)"},
      {kHermes, open + R"({"arguments":"{\"a\":\"x\ny\"}","name":"f"})" + close,
       R"(call:f|args:{"a":"x\u000ay"}|end)"},
      {kHermes, open + "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\n1}\"}" + close,
       "call:f|args:{\"a\":\n1}|end"},
      {kHermes, open + R"({"name":"f","arguments":""})" + close, "call:f|args:{}|end"},
      {kHermes, open + R"({"name":"f","arguments":{"a":{}})" + "\n" + close + "\nx",
       R"(call:f|args:{"a":{}}|end|content:x)"},
      {kHermes, open + R"({"name":"f","arguments":"{}")" + close, "call:f|args:{}|end"},
      {kHermes, open + R"({"name":"f","arguments":{})" + open + R"({"name":"f"})" + close,
       content_of(open + R"({"name":"f","arguments":{})") + "|call:f|args:{}|end"},
      {kLlama, "{\"name\":\"f\",\"parameters\":{\"a\":\"\n\"}}",
       R"(call:f|args:{"a":"\u000a"}|end)"},
  };
}

// Llama's calls begin the answer, in a list or one after the other.
inline std::vector<Fixture> llama_calls() {
  const std::string f = R"({"name": "f", "parameters": {"a": 1}})", tag = "<|python_tag|>";
  const std::string one = R"(call:f|args:{"a": 1}|end)", two = one + "|" + one;
  return {
      {kLlama, " " + f, one},
      {kLlama, tag + f + "\n", one},
      {kLlama, tag + "print(1)", content_of(tag + "print(1)")},
      {kLlama, "<|pyth", content_of("<|pyth")},
      {kLlama, R"({"answer": 42} and {"name": "f"})",
       content_of(R"({"answer": 42} and {"name": "f"})")},
      {kLlama, "Well, " + f, content_of("Well, " + f)},
      {kLlama, f + "; " + f, two},
      {kLlama, f + "\n\n" + f + "\n", two},
      {kLlama, f + f + ";", two},
      {kLlama, f + ", " + f, two},
      {kLlama, tag + f + "\n" + tag + " " + f, two},
      {kLlama, "[" + f + "]", one},
      {kLlama, "[\n  " + f + ",\n  " + f + "\n]\n", two},
      {kLlama, tag + "[" + f + ", " + f + "]; " + f, two + "|" + one},
      {kLlama, "[1, 2]", content_of("[1, 2]")},
      {kLlama, "[" + f + ", 7]", one + "|" + content_of(", 7]")},
      {kLlama, f + "]", one + "|" + content_of("]")},
      {kLlama, f + "; x", one + "|" + content_of("; x")},
      {kLlama, f + "\nDone!\n", one + "|" + content_of("Done!\n")},
      {kLlama, f + R"(; {"name": "g"})", one + "|" + content_of(R"(; {"name": "g"})")},
  };
}

// Text around calls is as it was written, without line ends before the first and after the last.
inline std::vector<Fixture> texts_around_calls() {
  const std::string f = R"(<tool_call>{"name":"f"}</tool_call>)", f_events = "call:f|args:{}|end";
  return {
      {kHermes, "Let me see.\n" + f + "\nDone!",
       "content:Let me see.|" + f_events + "|content:\n\nDone!"},
      {kHermes, "A\n" + f + "\n" + f + "B\n",
       "content:A|" + f_events + "|" + f_events + "|content:\n\nB\n"},
      {kHermes, "\n" + f + "\nA\n" + f + "\n", f_events + "|content:A|" + f_events},
      {kQwen3, "<think>hm</think>\n\nA\n" + f + "\nB",
       "thought:hm|content:A|" + f_events + "|content:\n\nB"},
  };
}

// A cut: nothing of a tag is left, and the text of a longer call is content.
inline std::vector<Fixture> cut_answers() {
  const std::string open = "<tool_call>";
  const std::string whole = R"({"name":"f","arguments":{}})", events = "call:f|args:{}|end";
  const auto cut = AnswerEnd::kCut;
  return {
      {kHermes, "Hi\n" + open, "content:Hi", cut},
      {kHermes, open + "\n{\"name\": \"f", "", cut},
      {kHermes, "a <tool_cal", "content:a ", cut},
      {kHermes, "a <tool", "content:a <tool", AnswerEnd::kModel},
      {kHermes, "a <b", "content:a <b", cut},
      {kHermes, open + whole + "</tool_", events, cut},
      {kHermes, open + whole + "\n</tool_call>\n" + open + "\n{", events, cut},
      {kHermes, open + R"({"name":"f","arguments":{"a")",
       "content:" + open + R"({"name":"f","arguments":{"a")", cut},
      {kHermes, open + R"({"name":"f","arguments":{})",
       "content:" + open + R"({"name":"f","arguments":{})", cut},
      {kLlama, "<|python_t", "", cut},
      {kLlama, R"({"name": "f)", "", cut},
      {kLlama, R"({"name": "f", "param)", R"(content:{"name": "f", "param)", cut},
      {kPlain, "a <tool_cal", "content:a <tool_cal", cut},
  };
}

// The model ends the answer and not its thought: a call at the end is no thought.
inline std::vector<Fixture> calls_in_thoughts() {
  const std::string f = R"(<tool_call>{"name":"f"}</tool_call>)", f_events = "call:f|args:{}|end";
  const std::string g = R"(<tool_call>{"name":"g"}</tool_call>)";
  const AnswerFormat inside{
      .thinks = true, .starts_in_thought = true, .tools = ToolFormat::kHermes};
  return {
      {kQwen3, "<think>\nhm\n" + f, "thought:hm|" + f_events},
      {inside, "hm\n" + f + "\n" + f + "\n", "thought:hm|" + f_events + "|" + f_events},
      {inside, f, f_events},
      {inside, "hm " + f + " so", "thought:hm " + f + " so"},
      {inside, "hm " + f + "\n</think>\n\nSo", "thought:hm " + f + "|content:So"},
      {inside, "hm " + f + "</think>" + f, "thought:hm " + f + "|" + f_events},
      {inside, "hm " + g, "thought:hm " + g},
      {inside, "a <tool_call> or b</think>So", "thought:a <tool_call> or b|content:So"},
      {inside, "a <tool_call><tool_call></think>So", "thought:a <tool_call><tool_call>|content:So"},
      {inside, "<<tool_call> x " + f, "thought:<<tool_call> x |" + f_events},
      {inside, f + "<" + f, "thought:" + f + "<|" + f_events},
      {inside, "hm " + f, "thought:hm " + f, AnswerEnd::kCut},
      {inside, "hm <tool_call>{\"na", "thought:hm <tool_call>{\"na", AnswerEnd::kCut},
      {inside, "hm <tool_call>{\"na", "thought:hm <tool_call>{\"na"},
      {kInside, "hm " + f, "thought:hm " + f},
  };
}

// Calls with tags; `w` has the parameters of coder_schema.
inline std::vector<Fixture> coder_calls() {
  const auto value = [](const std::string& key, const std::string& text) {
    return "<parameter=" + key + ">\n" + text + "\n</parameter>\n";
  };
  const auto call = [](const std::string& name, const std::string& parameters) {
    return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
  };
  const auto read = [](const std::string& name, const std::string& arguments) {
    return "call:" + name + "|args:" + arguments + "|end";
  };
  const std::string f = call("f", ""), f_events = read("f", "{}");
  std::vector<Fixture> all = {
      {kCoder, f, f_events},
      {kCoder, "Let me.\n\n" + f + "\n" + f + "\n", "content:Let me.|" + f_events + "|" + f_events},
      {kCoder, "<tool_call><function=f></function> </tool", f_events},
      {kCoder, f + "\nDone!", f_events + "|content:Done!"},
      {kQwen35, "<think>hm\n</think>\n\n" + f, "thought:hm|" + f_events},
      {kQwen35, "<think>hm\n" + f, "thought:hm|" + f_events},
      {kQwen35, "<think>a <tool_call> b</think>" + f, "thought:a <tool_call> b|" + f_events},
      {kCoder, call("w", value("text", "5") + value("count", "5")),
       read("w", R"({"text": "5", "count": 5})")},
      {kCoder, call("w", value("text", " a\n\t\"b\" <c> \\ ")),
       read("w", R"({"text": " a\n\t\"b\" <c> \\ "})")},
      {kCoder, call("w", value("text", "")), read("w", R"({"text": ""})")},
      {kCoder, call("w", "<parameter=text>\n</parameter><parameter=count> -1.5e3 </parameter>"),
       read("w", R"({"text": "", "count": -1.5e3})")},
      {kCoder, call("w", value("text", "null") + value("count", "many")),
       read("w", R"({"text": "null", "count": "many"})")},
      {kCoder, call("w", value("maybe", "None") + value("sure", "True")),
       read("w", R"({"maybe": null, "sure": true})")},
      {kCoder, call("w", value("maybe", "nothing") + value("sure", "false")),
       read("w", R"({"maybe": "nothing", "sure": false})")},
      {kCoder, call("w", value("list", "[1,\n {\"a\": \"x\ny\"}]")),
       read("w", "{\"list\": [1,\n {\"a\": \"x\\u000ay\"}]}")},
      {kCoder, call("w", value("list", R"(["</parameter>", "\"</parameter>"])")),
       read("w", R"({"list": ["</parameter>", "\"</parameter>"]})")},
      {kCoder, call("w", value("list", "[1, 2")), read("w", R"({"list": "[1, 2"})")},
      {kCoder, call("w", value("list", "{\"a\": 1}")), read("w", R"({"list": "{\"a\": 1}"})")},
      {kCoder, call("w", value("text", "[\"</parameter>\n<parameter=count>1")),
       read("w", R"({"text": "[\"", "count": 1})")},
      // What is not listed is what it can be read as.
      {kCoder,
       call("f", value("a b", "[]") + value("c", "x") + value("d", "1") + value("e", "1 x")),
       read("f", R"({"a b": [], "c": "x", "d": 1, "e": "1 x"})")},
      {kCoder, call("f", value("k", "1e400") + value("l", "{\"a\":1,\"a\":2}")),
       read("f", R"({"k": "1e400", "l": "{\"a\":1,\"a\":2}"})")},
      {kCoder, call("f", value("\"q\"", "</function>")), read("f", R"({"\"q\"": "</function>"})")},
  };
  // What is not a call is content.
  for (const std::string& bad :
       {call("g", ""), call("", ""), call("f", value("a", "1") + value("a", "2")),
        call("f", value("", "1")), call("f", "x"), call("f", "<parameter=a\n>1</parameter>"),
        call("f", "<parameter>"), call("f", value("a", "\xff")),
        std::string("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"),
        std::string("<tool_call><function=f><parameter=a>1</tool_call>"),
        std::string("<tool_call><function=f><parameter=a>1</parameter></tool_call>")}) {
    all.push_back({kCoder, bad, content_of(bad)});
    all.push_back({kCoder, "a\n" + bad + "\n" + f, content_of("a\n" + bad) + "|" + f_events});
    if (bad.ends_with("1</tool_call>")) all.pop_back();  // the next call is a part of the value
  }
  // A cut.
  const std::string cut = "<tool_call>\n<function=f>\n<parameter=a>\nb";
  all.push_back({kCoder, cut, content_of(cut), AnswerEnd::kCut});
  all.push_back({kCoder, "Hi <tool_call>\n<function=", "content:Hi ", AnswerEnd::kCut});
  all.push_back({kCoder, f + "\n<tool_call>\n<func", f_events, AnswerEnd::kCut});
  return all;
}

// The schema of the function `w` of coder_calls.
inline constexpr const char* kCoderSchema = R"({"type": "object", "properties": {
    "text": {"type": "string"}, "count": {"type": "integer"}, "sure": {"$ref": "#/$defs/flag"},
    "maybe": {"anyOf": [{"type": "null"}, {"enum": ["a", "nothing"]}]},
    "list": {"type": "array"}}, "$defs": {"flag": {"type": ["boolean"]}}})";

inline std::vector<Fixture> fixtures() {
  std::vector<Fixture> all = thoughts();
  for (const auto& more :
       {calls(), unreadable_calls(), nearly_json_calls(), llama_calls(), texts_around_calls(),
        cut_answers(), calls_in_thoughts(), coder_calls()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace sluice::testing
