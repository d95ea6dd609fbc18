#!/bin/sh
# smg 1.13.0 (PyPI) before two replicas of `sluice serve`: a text goes to the replica that was asked
# about it before. Tried by tools/clients/check_smg.py.
#
# SLUICE_API_KEY is the key of the replicas and of the clients. Without --api-key smg cannot read
# /v1/models of replicas that have a key: it calls their model "unknown" and answers every request
# with 404. The thresholds of its balance stay as they are: with lower ones documents move.
exec smg launch --host 0.0.0.0 --port 8080 \
  --worker-urls http://sluice-0:8000 http://sluice-1:8000 --policy cache_aware \
  --health-check-interval-secs 2 --health-failure-threshold 1 --api-key "$SLUICE_API_KEY"
