// The templates of the supported families. Their layout differs from the models' files; the lexer
// gives the same tokens. Parts that several templates share are separate constants.
#include "tokenizer/known_templates.h"

#include <initializer_list>
#include <string>

namespace sluice {
namespace {

// ChatML: a default system message if the conversation has none.
constexpr std::string_view kChatMlDefault = R"jinja(
  {%- if loop.first and messages[0].role != 'system' -%}
    {{ '<|im_start|>system\n@<|im_end|>\n' }}
  {%- endif -%}
)jinja";

constexpr std::string_view kChatMlMessage = R"jinja(
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|im_start|>assistant\n' }}
{%- endif -%}
)jinja";

// Qwen2.5, whole. The parts for tools are only compared: Sluice passes no tools.
constexpr std::string_view kQwen25 = R"jinja({%- if tools %}
  {{- '<|im_start|>system\n' }}
  {%- if messages[0]['role'] == 'system' %}
    {{- messages[0]['content'] }}
  {%- else %}
    {{- '@' }}
  {%- endif %}
  {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user "
      + "query.\n\nYou are provided with function signatures within <tools></tools> XML "
      + "tags:\n<tools>" }}
  {%- for tool in tools %}
    {{- "\n" }}
    {{- tool | tojson }}
  {%- endfor %}
  {{- "\n</tools>\n\nFor each function call, return a json object with function name and "
      + "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
      + "<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
  {%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
  {%- else %}
    {{- '<|im_start|>system\n@<|im_end|>\n' }}
  {%- endif %}
{%- endif %}
{%- for message in messages %}
  {%- if (message.role == "user") or (message.role == "system" and not loop.first)
      or (message.role == "assistant" and not message.tool_calls) %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
  {%- elif message.role == "assistant" %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content %}
      {{- '\n' + message.content }}
    {%- endif %}
    {%- for tool_call in message.tool_calls %}
      {%- if tool_call.function is defined %}
        {%- set tool_call = tool_call.function %}
      {%- endif %}
      {{- '\n<tool_call>\n{"name": "' }}
      {{- tool_call.name }}
      {{- '", "arguments": ' }}
      {{- tool_call.arguments | tojson }}
      {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- elif message.role == "tool" %}
    {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
      {{- '<|im_start|>user' }}
    {%- endif %}
    {{- '\n<tool_response>\n' }}
    {{- message.content }}
    {{- '\n</tool_response>' }}
    {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
      {{- '<|im_end|>\n' }}
    {%- endif %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
{%- endif %}
)jinja";

// Qwen3: the system message and the tools.
constexpr std::string_view kQwen3System = R"jinja({%- if tools %}
  {{- '<|im_start|>system\n' }}
  {%- if messages[0].role == 'system' %}
    {{- messages[0].content + '\n\n' }}
  {%- endif %}
  {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou "
      + "are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
  {%- for tool in tools %}
    {{- "\n" }}
    {{- tool | tojson }}
  {%- endfor %}
  {{- "\n</tools>\n\nFor each function call, return a json object with function name and "
      + "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
      + "<function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
  {%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
  {%- endif %}
{%- endif %}
)jinja";

// Qwen3: ns.last_query_index, the last user message that is not a tool's answer.
constexpr std::string_view kQwen3Query =
    R"jinja({%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
  {%- set index = (messages|length - 1) - loop.index0 %}
  {%- if ns.multi_step_tool and message.role == "user" and message.content is string
      and not(message.content.startswith('<tool_response>')
      and message.content.endswith('</tool_response>')) %}
    {%- set ns.multi_step_tool = false %}
    {%- set ns.last_query_index = index %}
  {%- endif %}
{%- endfor %}
)jinja";

// Qwen3: begins the loop over messages; contents that are not strings count as empty.
constexpr std::string_view kQwen3User = R"jinja({%- for message in messages %}
  {%- if message.content is string %}
    {%- set content = message.content %}
  {%- else %}
    {%- set content = '' %}
  {%- endif %}
  {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
  {%- elif message.role == "assistant" %}
)jinja";

// Qwen3: splits an answer into thought and content.
constexpr std::string_view kQwen3Thought = R"jinja(    {%- set reasoning_content = '' %}
    {%- if message.reasoning_content is string %}
      {%- set reasoning_content = message.reasoning_content %}
    {%- else %}
      {%- if '</think>' in content %}
        {%- set reasoning_content = content.split('</think>')[0]
            .rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
      {%- endif %}
    {%- endif %}
)jinja";

// Qwen3: writes an answer; the thought only after the last query.
constexpr std::string_view kQwen3Answer = R"jinja(    {%- if loop.index0 > ns.last_query_index %}
      {%- if loop.last or (not loop.last and reasoning_content) %}
        {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n')
            + '\n</think>\n\n' + content.lstrip('\n') }}
      {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + content }}
      {%- endif %}
    {%- else %}
      {{- '<|im_start|>' + message.role + '\n' + content }}
    {%- endif %}
)jinja";

// Qwen3: calls of tools in an answer, and the answers of tools.
constexpr std::string_view kQwen3Tools = R"jinja(    {%- if message.tool_calls %}
      {%- for tool_call in message.tool_calls %}
        {%- if (loop.first and content) or (not loop.first) %}
          {{- '\n' }}
        {%- endif %}
        {%- if tool_call.function %}
          {%- set tool_call = tool_call.function %}
        {%- endif %}
        {{- '<tool_call>\n{"name": "' }}
        {{- tool_call.name }}
        {{- '", "arguments": ' }}
        {%- if tool_call.arguments is string %}
          {{- tool_call.arguments }}
        {%- else %}
          {{- tool_call.arguments | tojson }}
        {%- endif %}
        {{- '}\n</tool_call>' }}
      {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
  {%- elif message.role == "tool" %}
    {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
      {{- '<|im_start|>user' }}
    {%- endif %}
    {{- '\n<tool_response>\n' }}
)jinja";

constexpr std::string_view kQwen3ToolsEnd = R"jinja(    {{- '\n</tool_response>' }}
    {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
      {{- '<|im_end|>\n' }}
    {%- endif %}
  {%- endif %}
{%- endfor %}
)jinja";

// The first release of Qwen3: without tests for strings, and with its parts in another order.
constexpr std::string_view kQwen3FirstQuery = R"jinja(
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
  {%- set index = (messages|length - 1) - loop.index0 %}
  {%- if ns.multi_step_tool and message.role == "user"
      and not(message.content.startswith('<tool_response>')
      and message.content.endswith('</tool_response>')) %}
    {%- set ns.multi_step_tool = false %}
    {%- set ns.last_query_index = index %}
  {%- endif %}
{%- endfor %}
)jinja";

constexpr std::string_view kQwen3FirstThought = R"jinja({%- for message in messages %}
  {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
  {%- elif message.role == "assistant" %}
    {%- set content = message.content %}
    {%- set reasoning_content = '' %}
    {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
      {%- set reasoning_content = message.reasoning_content %}
    {%- else %}
      {%- if '</think>' in message.content %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
        {%- set reasoning_content = message.content.split('</think>')[0]
            .rstrip('\n').split('<think>')[-1].lstrip('\n') %}
      {%- endif %}
    {%- endif %}
)jinja";

// Qwen3-Instruct, which never thinks: the answer is written unchanged.
constexpr std::string_view kQwen3PlainAnswer = R"jinja(
    {{- '<|im_start|>' + message.role + '\n' + content }}
)jinja";

constexpr std::string_view kPrompt = R"jinja({%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
{%- endif %}
)jinja";

// Qwen3: enable_thinking = false starts the answer with an empty thought.
constexpr std::string_view kQwen3Asks = R"jinja({%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\n\n</think>\n\n' }}
  {%- endif %}
{%- endif %}
)jinja";

// Qwen3-Thinking: an answer begins inside a thought.
constexpr std::string_view kQwen3Thinks = R"jinja({%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %}
)jinja";

// Llama 3: the messages; the end of a prompt is kLlama3Asks, or kLlama3Prompt in the first release.
constexpr std::string_view kLlama3 = R"jinja({%- set loop_messages = messages -%}
{%- for message in loop_messages -%}
  {%- set content = '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n'
      + message.content | trim + '<|eot_id|>' -%}
  {%- if loop.index0 == 0 -%}
    {%- set content = bos_token + content -%}
  {%- endif -%}
  {{ content }}
{%- endfor -%}
)jinja";

constexpr std::string_view kLlama3Asks = R"jinja({%- if add_generation_prompt -%}
  {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif -%}
)jinja";

constexpr std::string_view kLlama3Prompt = R"jinja(
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
)jinja";

// Llama 3.1 and 3.2, which differ in the date only.
constexpr std::string_view kLlama31 = R"jinja({{- bos_token }}
{%- if custom_tools is defined %}
  {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
  {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
)jinja";

// Llama 3.1 has a fixed date; 3.2 asks for today's (ChatTemplate::prints_today).
constexpr std::string_view kLlama31Date = R"jinja(  {%- set date_string = "@" %}
)jinja";

constexpr std::string_view kLlama32Date = R"jinja(  {%- if strftime_now is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
  {%- else %}
    {%- set date_string = "@" %}
  {%- endif %}
)jinja";

constexpr std::string_view kLlama31Rest = R"jinja({%- endif %}
{%- if not tools is defined %}
  {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
  {%- set system_message = messages[0]['content']|trim %}
  {%- set messages = messages[1:] %}
{%- else %}
  {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
  {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
  {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
  {{- "You have access to the following functions. To call a function, please respond with "
      + "JSON for a function call." }}
  {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument '
      + 'name and its value}.' }}
  {{- "Do not use variables.\n\n" }}
  {%- for t in tools %}
    {{- t | tojson(indent=4) }}
    {{- "\n\n" }}
  {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
  {%- if messages | length != 0 %}
    {%- set first_user_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
  {%- else %}
    {{- raise_exception("Cannot put tools in the first user message when there's no first "
        + "user message!") }}
  {%- endif %}
  {{- '<|start_header_id|>user<|end_header_id|>\n\n' -}}
  {{- "Given the following functions, please respond with a JSON for a function call " }}
  {{- "with its proper arguments that best answers the given prompt.\n\n" }}
  {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument '
      + 'name and its value}.' }}
  {{- "Do not use variables.\n\n" }}
  {%- for t in tools %}
    {{- t | tojson(indent=4) }}
    {{- "\n\n" }}
  {%- endfor %}
  {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
  {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'
        + message['content'] | trim + '<|eot_id|>' }}
  {%- elif 'tool_calls' in message %}
    {%- if not message.tool_calls|length == 1 %}
      {{- raise_exception("This model only supports single tool-calls at once!") }}
    {%- endif %}
    {%- set tool_call = message.tool_calls[0].function %}
    {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
      {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
      {{- "<|python_tag|>" + tool_call.name + ".call(" }}
      {%- for arg_name, arg_val in tool_call.arguments | items %}
        {{- arg_name + '="' + arg_val + '"' }}
        {%- if not loop.last %}
          {{- ", " }}
        {%- endif %}
        {%- endfor %}
      {{- ")" }}
    {%- else  %}
      {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
      {{- '{"name": "' + tool_call.name + '", ' }}
      {{- '"parameters": ' }}
      {{- tool_call.arguments | tojson }}
      {{- "}" }}
    {%- endif %}
    {%- if builtin_tools is defined %}
      {{- "<|eom_id|>" }}
    {%- else %}
      {{- "<|eot_id|>" }}
    {%- endif %}
  {%- elif message.role == "tool" or message.role == "ipython" %}
    {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
    {%- if message.content is mapping or message.content is iterable %}
      {{- message.content | tojson }}
    {%- else %}
      {{- message.content }}
    {%- endif %}
    {{- "<|eot_id|>" }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
)jinja";

// The template that consists of `pieces`, in order.
KnownTemplate known(std::variant<ChatMlFormat, Llama3Format> format,
                    std::initializer_list<std::string_view> pieces) {
  std::string text;
  for (const std::string_view piece : pieces) text += piece;
  return {lex_jinja(text).tokens, std::move(format)};
}

std::vector<KnownTemplate> make_known_templates() {
  constexpr std::string_view kLoop = "{% for message in messages -%}";
  constexpr std::string_view kContent = "{{- content }}";
  constexpr std::string_view kMessageContent = "{{- message.content }}";
  const ChatMlFormat qwen3{.edits_thoughts = true, .thinking_switch = true};
  const ChatMlFormat qwen3_thinking{.edits_thoughts = true, .opens_thought = true};
  const Llama3Format dated{.dated_system = true};
  const Llama3Format prints_today{.dated_system = true, .prints_today = true};
  return {
      known(ChatMlFormat{}, {kLoop, kChatMlMessage}),
      known(ChatMlFormat{}, {kLoop, kChatMlDefault, kChatMlMessage}),  // Qwen1.5, Qwen2, SmolLM2
      known(ChatMlFormat{}, {kQwen25}),
      known(qwen3, {kQwen3System, kQwen3Query, kQwen3User, kQwen3Thought, kQwen3Answer, kQwen3Tools,
                    kContent, kQwen3ToolsEnd, kQwen3Asks}),
      known(qwen3, {kQwen3System, kQwen3FirstQuery, kQwen3FirstThought, kQwen3Answer, kQwen3Tools,
                    kMessageContent, kQwen3ToolsEnd, kQwen3Asks}),
      known(qwen3_thinking, {kQwen3System, kQwen3Query, kQwen3User, kQwen3Thought, kQwen3Answer,
                             kQwen3Tools, kContent, kQwen3ToolsEnd, kQwen3Thinks}),
      known(ChatMlFormat{}, {kQwen3System, kQwen3User, kQwen3PlainAnswer, kQwen3Tools, kContent,
                             kQwen3ToolsEnd, kPrompt}),
      known(Llama3Format{}, {kLlama3, kLlama3Asks}),
      known(Llama3Format{.always_prompts = true}, {kLlama3, kLlama3Prompt}),
      known(dated, {kLlama31, kLlama31Date, kLlama31Rest}),
      known(prints_today, {kLlama31, kLlama32Date, kLlama31Rest}),
  };
}

}  // namespace

const std::vector<KnownTemplate>& known_templates() {
  static const std::vector<KnownTemplate> templates = make_known_templates();
  return templates;
}

}  // namespace sluice
