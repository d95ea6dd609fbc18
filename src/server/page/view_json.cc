// Written as text: with a hundred thousand blocks a document of values would cost more than the
// view itself.
#include "server/page/view_json.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>

#include <fmt/format.h>

namespace sluice::server {
namespace {

// One letter each: with a fragmented pool there is one for each block.
char letter_of(KvPlace place) {
  switch (place) {
    case KvPlace::kDevice:
      return 'd';
    case KvPlace::kHost:
      return 'h';
    case KvPlace::kComputing:
      return 'c';
    case KvPlace::kLoading:
      return 'l';
  }
  return '?';
}

// fmt::format_to at the end of a text.
template <typename... Args>
void append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Calls `write` for each element, with commas between.
template <typename List, typename Write>
void append_list(std::string& out, const List& list, Write write) {
  out += '[';
  for (const auto& element : list) {
    write(element);
    out += ',';
  }
  if (out.back() == ',') out.pop_back();
  out += ']';
}

// Merges neighbours with consecutive ids and the same place. Blocks are taken from a stack that
// begins in order of ids, so most prompts are few runs.
void append_blocks(std::string& out, const std::vector<BlockCell>& blocks) {
  out += '[';
  for (size_t begin = 0; begin < blocks.size();) {
    const BlockCell& first = blocks[begin];
    int32_t count = 1;
    const auto goes_on = [&](const BlockCell& cell) {
      return cell.id == first.id + count && cell.place == first.place;
    };
    while (begin + static_cast<size_t>(count) < blocks.size() &&
           goes_on(blocks[begin + static_cast<size_t>(count)])) {
      ++count;
    }
    append(out, "{}[{},{},\"{}\"]", begin == 0 ? "" : ",", first.id, count, letter_of(first.place));
    begin += static_cast<size_t>(count);
  }
  out += ']';
}

// Names of pins are the only texts of a view, and have nothing to escape (is_pin_name).
void append_pin(std::string& out, const PinView& pin) {
  append(out, R"({{"name":"{}","blocks":)", pin.name);
  append_blocks(out, pin.blocks);
  append(out, R"(,"disk":{}}})", pin.num_disk_blocks);
}

// Slots are few, so their blocks are listed one by one.
void append_slot(std::string& out, const SlotView& slot) {
  append(out, R"({{"held":{},"layer":{},"pages":{},"blocks":[{}]}})", slot.is_held, slot.layer,
         slot.has_pages, fmt::join(slot.blocks, ","));
}

void append_sequence(std::string& out, const SequenceView& sequence) {
  append(out, R"({{"id":{},"prompt":{},"cached":{},"done":{},"generated":{},"blocks":)",
         sequence.request_id, sequence.num_prompt_tokens, sequence.num_cached_tokens,
         sequence.num_done, sequence.num_generated);
  append_blocks(out, sequence.blocks);
  out += '}';
}

// Totals, so that a client may miss views: it takes differences of those that it got.
void append_counts(std::string& out, const EngineView& view) {
  constexpr int64_t kNsPerMs = 1'000'000;
  const EngineStats& stats = view.stats;
  append(out, R"("time_ms":{},"running":{},"waiting":{},"waiting_tokens":{})",
         view.time_ns / kNsPerMs, view.num_running, view.num_waiting,
         view.num_waiting_prompt_tokens);
  append(out, R"(,"tokens":{{"computed":{},"cached":{},"generated":{}}})", stats.num_prompt_tokens,
         stats.num_cached_tokens, stats.num_generated_tokens);
  append(out, R"(,"steps":{},"prefill_ms":{},"decode_ms":{})", stats.num_steps,
         stats.prefill_ns / kNsPerMs, stats.decode_ns / kNsPerMs);
  append(out, R"(,"link":{{"to_device":{},"to_host":{}}})", stats.kv_h2d_bytes, stats.kv_d2h_bytes);
  append(out,
         R"(,"kv":{{"on_host":{},"blocks":{},"block_tokens":{},"block_bytes":{},"blank":{},)"
         R"("slot_blocks":{},"link_bytes_per_second":{:.0f}}})",
         view.kv.on_host, view.kv.num_blocks, view.kv.block_tokens, view.kv.block_bytes,
         view.num_blank, view.kv.slot_blocks, view.kv.link_bytes_per_second);
}

// Names of ops are a list of their own, since a second has some ten thousand spans of thirty ops.
void append_spans(std::string& out, const StreamSpans& stream, int64_t origin_ns) {
  constexpr std::string_view kWait = "wait";
  std::vector<std::string_view> ops;
  std::string spans;
  for (const StreamSpans::Span& span : stream.spans) {
    if (span.op_name == kWait) continue;
    auto op = std::ranges::find(ops, span.op_name);
    if (op == ops.end()) op = ops.insert(ops.end(), span.op_name);
    append(spans, "{}[{},{:.1f},{:.1f}]", spans.empty() ? "" : ",", op - ops.begin(),
           static_cast<double>(span.begin_ns - origin_ns) * 1e-3,
           static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
  }
  append(out, R"({{"name":"{}","ops":)", stream.stream_name);
  append_list(out, ops, [&](std::string_view op) { append(out, "\"{}\"", op); });
  append(out, R"(,"spans":[{}]}})", spans);
}

}  // namespace

std::string view_json(const EngineView& view) {
  std::string out = "{";
  append_counts(out, view);
  out += R"(,"sequences":)";
  append_list(out, view.sequences,
              [&](const SequenceView& sequence) { append_sequence(out, sequence); });
  out += R"(,"pins":)";
  append_list(out, view.pins, [&](const PinView& pin) { append_pin(out, pin); });
  out += R"(,"slots":)";
  append_list(out, view.slots, [&](const SlotView& slot) { append_slot(out, slot); });
  out += R"(,"kept":)";
  append_list(out, view.kept, [&](const std::vector<BlockCell>& run) { append_blocks(out, run); });
  append(out, R"(,"reads":{{"page_tokens":{},"blocks":)", view.page_tokens);
  append_list(out, view.reads, [&](const BlockReads& block) {
    append(out, "[{},{}]", block.id, fmt::join(block.pages, ","));
  });
  out += "}}";
  return out;
}

std::string timeline_json(const std::vector<StreamSpans>& streams) {
  int64_t origin_ns = std::numeric_limits<int64_t>::max();
  for (const StreamSpans& stream : streams) {
    for (const StreamSpans::Span& span : stream.spans) {
      origin_ns = std::min(origin_ns, span.begin_ns);
    }
  }
  std::string out = R"({"streams":)";
  append_list(out, streams,
              [&](const StreamSpans& stream) { append_spans(out, stream, origin_ns); });
  out += '}';
  return out;
}

}  // namespace sluice::server
