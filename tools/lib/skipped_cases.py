#!/usr/bin/env python3
"""skipped_cases.py EVENTS: what tests that passed left out, from the logs that Bazel's --build_event_json_file names.

A line per case, "case<TAB>TARGET<TAB>NAME: REASON", each once though several ranks or shards say it; and "all<TAB>TARGET" for a test none
of whose logs shows that anything was checked. Tests say both by SkipCase of third_party/catch2/session.h. Exit code 1 where EVENTS or a
log cannot be read.
"""
import json
import sys
import urllib.parse
import urllib.request


def logs_of_passed(events):
    """Target -> paths of the logs of its last attempts, one per shard."""
    logs = {}
    for line in events:
        event = json.loads(line)
        result = event.get("testResult")
        if not result or result.get("status") not in ("PASSED", "FLAKY"):
            continue
        for output in result.get("testActionOutput", []):
            if output["name"] == "test.log":
                path = urllib.request.url2pathname(urllib.parse.urlparse(output["uri"]).path)
                logs.setdefault(event["id"]["testResult"]["label"], []).append(path)
    return logs


def main():
    with open(sys.argv[1], encoding="utf-8") as events:
        logs = logs_of_passed(events)
    for target, paths in sorted(logs.items()):
        cases = set()
        ran = False
        for path in paths:
            with open(path, encoding="utf-8", errors="replace") as log:
                lines = log.read().splitlines()
            cases.update(line[len("skipped case: "):] for line in lines if line.startswith("skipped case: "))
            ran = ran or "skipped all" not in lines
        for case in sorted(cases):
            print("case", target, case, sep="\t")
        if cases and not ran:
            print("all", target, sep="\t")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"skipped_cases.py: {error}")
