// KvEventsOptions: where an engine tells routers which prefixes its cache has (docs/kv_events.md).
//
// Part of EngineOptions. Thread rule: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "sluice/option_row.h"

namespace sluice {

// The other fields count only with an endpoint. None of them changes results. Whoever can connect
// reads the token ids of all prompts: there are no keys.
struct KvEventsOptions {
  // To bind, as ZeroMQ writes it: tcp://*:5557, ipc:///path. Empty: nothing is published.
  std::optional<std::string> endpoint;
  // Where readers ask again for messages that they missed. Empty: nowhere.
  std::optional<std::string> replay_endpoint;
  std::optional<std::string> topic;  // the first frame of each message; empty: no bytes
  int32_t buffer_steps = 10'000;     // messages that are kept for readers that missed them
  // Messages that wait for one slow reader, whose others are lost; 0: no limit.
  int32_t send_limit = 100'000;
};

inline constexpr std::array kKvEventsRows = {
    option_row<&KvEventsOptions::endpoint>(
        {.name = "kv_events",
         .kind = OptionKind::kText,
         .placeholder = "ENDPOINT",
         .when_unset = "none",
         .help = "tell routers which blocks the prefix cache has, on tcp://*:5557 or another "
                 "address of this machine"}),
    option_row<&KvEventsOptions::replay_endpoint>(
        {.name = "kv_events_replay",
         .kind = OptionKind::kText,
         .placeholder = "ENDPOINT",
         .when_unset = "none",
         .help = "where they ask for events that they missed: tcp://*:5558"}),
    option_row<&KvEventsOptions::topic>({.name = "kv_events_topic",
                                         .kind = OptionKind::kText,
                                         .placeholder = "TEXT",
                                         .when_unset = "empty",
                                         .help = "topic of the events, as kv@POD@MODEL"}),
    option_row<&KvEventsOptions::buffer_steps>({.name = "kv_events_buffer_steps",
                                                .max = 1 << 24,
                                                .when_unset = "10000",
                                                .help = "steps whose events can be asked for"}),
    option_row<&KvEventsOptions::send_limit>(
        {.name = "kv_events_hwm",
         .max = std::numeric_limits<int32_t>::max(),
         .when_unset = "100000",
         .help = "steps whose events wait for a slow router; 0: no limit"}),
};

}  // namespace sluice
