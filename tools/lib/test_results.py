#!/usr/bin/env python3
"""test_results.py EVENTS: what became of the tests of a `bazel test`.

EVENTS is its --build_event_json_file. A line per fact, the fields separated by tabs:
  status TARGET STATUS     once per test that the tag filter chose. STATUS as Bazel writes it for
                           people: PASSED, FLAKY, FAILED, TIMEOUT, FAILED TO BUILD, INCOMPLETE,
                           NO STATUS and so on. SKIPPED: it cannot be built for this platform, or
                           it passed but its logs show that nothing was checked.
  cached TARGET            nothing of it ran now: all its results come from Bazel's cache
  case TARGET NAME: REASON  a case that a passed test left out (SkipCase of
                           third_party/catch2/session.h), once, whatever the number of ranks or
                           shards that say it
  log TARGET PATH          a log of a test that did not pass

Exit code 1, with the reason, where EVENTS or the log of a passed test cannot be read, or where
EVENTS ends before the build did.
"""
import json
import sys
import urllib.parse
import urllib.request

OK = ("PASSED", "FLAKY")
CASE = "skipped case: "
TAG_FILTER = "--test_tag_filters="


def local_path(uri):
    return urllib.request.url2pathname(urllib.parse.urlparse(uri).path)


class Events:
    """What EVENTS says, by target. A summary is there only of tests that Bazel has run."""

    def __init__(self, lines):
        self.tags = {}  # of each test, chosen or not
        self.tag_filter = ""
        self.completed = {}
        self.summaries = {}
        self.logs_of_passed = {}
        ended = False
        for line in lines:
            event = json.loads(line)
            ended = ended or event.get("lastMessage", False)
            kind = next(iter(event["id"]), "")
            target = event["id"].get(kind, {}).get("label")
            what = next((key for key in event if key not in ("id", "children", "lastMessage")), "")
            self.add(kind, target, what, event.get(what))
        if not ended:
            raise ValueError("the events end before the build did")

    def add(self, kind, target, what, content):
        if what == "optionsParsed":
            for word in content.get("cmdLine", []):
                if word.startswith(TAG_FILTER):
                    self.tag_filter = word[len(TAG_FILTER):]
        elif what == "configured" and "testSize" in content:
            self.tags[target] = content.get("tag", [])
        elif kind == "targetCompleted":
            self.completed[target] = content.get("reason") or content.get("success", False)
        elif what == "testSummary":
            self.summaries[target] = content
        elif what == "testResult" and content.get("status") in OK:
            for output in content.get("testActionOutput", []):
                if output["name"] == "test.log":
                    self.logs_of_passed.setdefault(target, []).append(local_path(output["uri"]))

    def chosen(self):
        """Tests that the tag filter lets through, and those that ran anyway."""
        words = [word for word in self.tag_filter.split(",") if word]
        no = {word[1:] for word in words if word[0] == "-"}
        yes = {word.lstrip("+") for word in words if word[0] != "-"}
        chosen = {target for target, tags in self.tags.items()
                  if not no.intersection(tags) and (not yes or yes.intersection(tags))}
        return chosen | set(self.summaries)

    def status(self, target):
        if target in self.summaries:
            return self.summaries[target]["overallStatus"].replace("_", " ")
        completed = self.completed.get(target)
        if completed == "SKIPPED":
            return "SKIPPED"
        return "FAILED TO BUILD" if completed is False else "NO STATUS"


def cases_left_out(paths):
    """(cases that the logs of a passed test name, whether anything was checked)"""
    cases, ran = set(), False
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as log:
            lines = log.read().splitlines()
        cases.update(line[len(CASE):] for line in lines if line.startswith(CASE))
        ran = ran or "skipped all" not in lines
    return cases, ran


def facts(events):
    for target in sorted(events.chosen()):
        status = events.status(target)
        summary = events.summaries.get(target, {})
        if status in OK:
            cases, ran = cases_left_out(events.logs_of_passed.get(target, []))
            for case in sorted(cases):
                yield "case", target, case
            if cases and not ran:
                status = "SKIPPED"
            if summary.get("totalNumCached", 0) == summary.get("totalRunCount"):
                yield "cached", target
        else:
            for log in summary.get("failed", []):
                yield "log", target, local_path(log["uri"])
        yield "status", target, status


def main():
    with open(sys.argv[1], encoding="utf-8") as lines:
        events = Events(lines)
    for fact in list(facts(events)):
        print(*fact, sep="\t")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"test_results.py: {error}")
