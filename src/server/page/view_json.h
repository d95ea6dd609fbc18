// The bodies of /sluice/state, /sluice/events and /sluice/timeline.
//
// Used by the routes that show an engine. Thread rule: any thread; values in, text out.
#pragma once

#include <string>
#include <vector>

#include "service/engine_view.h"

namespace sluice::server {

// One object on one line, with all members always:
//   time_ms                             of a steady clock, for rates between two views
//   running, waiting, waiting_tokens    requests of the engine; tokens of prompts that wait
//   tokens {computed, cached, generated}, steps, prefill_ms, decode_ms
//                                       totals since the engine was made
//   link {to_device, to_host}           bytes of KV transferred since then
//   kv {on_host, blocks, block_tokens, block_bytes, blank}
//                                       the memory of KV; blank blocks hold nothing
//   sequences [{id, prompt, cached, done, generated, blocks}]
//                                       requests that hold blocks, in order of arrival
//   kept [blocks]                       runs of blocks that no request holds and a prompt can find
//   reads {page_tokens, blocks [[id, count, ...]]}
//                                       how often decode chose each page since the view before;
//                                       page_tokens 0: it chooses none by score
// Blocks are in order of position, as runs [first id, number of blocks, place]: the ids of a run
// follow each other. Places: "d" device, "h" host, "c" being computed. Blocks of all sequences,
// those kept and the blank ones are all blocks; several sequences may hold one.
// Cost: linear in blocks; a fresh prompt is a few runs, a fragmented pool one for each block.
std::string view_json(const EngineView& view);

// {"streams": [{"name", "ops": [name, ...], "spans": [[index in ops, begin, duration], ...]}]}:
// microseconds since the first span. Waits for events are left out.
std::string timeline_json(const std::vector<StreamSpans>& streams);

}  // namespace sluice::server
