#!/bin/sh
# vllm-router 0.1.17 (PyPI) before two replicas of `sluice serve`: a prompt goes to the replica that
# says it holds most of it. Tried by tools/clients/check_vllm_router.py.
#
# Each replica has --kv-events: sluice serve --kv-events 'tcp://*:5557' \
#   --kv-events-replay 'tcp://*:5558' --block-size 256
#
# The topic stays empty: with another one this router credits nothing, and does not say so. So it is
# with another block size than the replicas'. Clients' keys are passed on to the replicas.
exec vllm-router --host 0.0.0.0 --port 8080 \
  --worker-urls http://sluice-0:8000 http://sluice-1:8000 --policy kv_aware \
  --kv-event-model needle --kv-event-block-size 256 \
  --kv-event-source http://sluice-0:8000=tcp://sluice-0:5557 \
  --kv-event-source http://sluice-1:8000=tcp://sluice-1:5557 \
  --kv-event-replay-source http://sluice-0:8000=tcp://sluice-0:5558 \
  --kv-event-replay-source http://sluice-1:8000=tcp://sluice-1:5558 \
  --worker-startup-check-interval 1 \
  --health-check-interval-secs 1 --health-failure-threshold 1 --health-success-threshold 1
